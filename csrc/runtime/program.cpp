#include "runtime/program.h"

#include <chrono>
#include <utility>

#include "runtime/error.h"

namespace octavo {
namespace {

constexpr std::int64_t kMaxRows = 1 << 20;
constexpr std::int64_t kMaxPositions = 1 << 30;

double now() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

}  // namespace

Program::Program(std::shared_ptr<ThreadPool> pool, std::shared_ptr<const KernelTable> kernels,
                 DType act, const StepLimits& limits)
    : pool_(std::move(pool)), kernels_(std::move(kernels)), act_(act) {
  for (const std::int64_t n : {limits.max_tokens, limits.max_requests, limits.max_logit_rows}) {
    require(n > 0 && n <= kMaxRows, "step limits must be in 1…2^20");
  }
  require(limits.max_position > 0 && limits.max_position < kMaxPositions,
          "max_position must be in 1…2^30");
  rules_.limits = limits;
}

void Program::check_weights() const {
  for (const auto& weight : weights_) {
    require(weight->is_loaded(), "a weight of this program is unloaded");
  }
}

void Program::check_inputs(const StepArrays& step) const {
  for (const auto& [name, id] : inputs_) {
    const Value& v = *values_[id];
    const auto found = step.extra.find(name);
    if (found == step.extra.end()) throw Error("step: input '" + name + "' is missing");
    const StepArrays::Extra& x = found->second;
    const bool fits = x.dtype == v.info.dtype || x.dtype == DType::kF32;  // rounded to bfloat16
    if (x.rows != step.token_ids.size || x.columns != v.info.width || !fits) {
      throw Error("step: input '" + name + "' must be [" + std::to_string(step.token_ids.size) +
                  ", " + std::to_string(v.info.width) + "] of its declared dtype or float32");
    }
  }
}

// Bits of the outputs asked for, in the order of taps_.
std::uint64_t Program::wanted_taps(const StepArrays& step) const {
  if (step.wants_all) return ~std::uint64_t{0};
  std::uint64_t wanted = 0;
  for (const std::string& name : step.wanted) {
    std::size_t i = 0;
    while (i < taps_.size() && taps_[i].first != name) ++i;
    if (i == taps_.size()) throw Error("step: this program has no output '" + name + "'");
    wanted |= std::uint64_t{1} << i;
  }
  return wanted;
}

// Once for all threads, which must agree.
void Program::choose_ops(const StepView& step, const Split split[2], std::uint64_t wanted) {
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    const Op& op = ops_[i];
    const Split& s = split[static_cast<int>(op.rows)];
    const Task task{0,      pool_->num_threads(), s.rows, s.by_rows, s.replicated, nullptr, &step,
                    nullptr};
    runs_[i] = (op.has_effects || (op.taps & wanted) != 0) && !(op.skip_by_rows && s.by_rows) &&
               (!op.is_needed || op.is_needed(task));
  }
}

void Program::execute(int thread, const StepView& step, const Split split[2]) {
  const int num_threads = pool_->num_threads();
  Task task{thread, num_threads, 0, false, false, scratch_ + thread * scratch_bytes_,
            &step,  nullptr};
  const bool timed = profiling_ && thread == 0;
  double mark = timed ? now() : 0.0;
  bool barrier = false, may_have_failed = false;
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    Op& op = ops_[i];
    barrier = barrier || needs_barrier(i, split);  // also one before an op that is left out
    if (!runs_[i]) continue;
    if (barrier && num_threads > 1) pool_->barrier(thread);
    barrier = false;
    // An op that can fail has a barrier behind it: all threads see the same.
    if (may_have_failed && failure_) return;
    may_have_failed = op.can_fail;
    if (timed) {
      const double t = now();
      wait_seconds_ += t - mark;
      mark = t;
    }
    const Split& s = split[static_cast<int>(op.rows)];
    task.rows = s.rows;
    task.by_rows = s.by_rows;
    task.replicated = s.replicated;
    task.kv_ahead = op.kv_ahead;
    op.run(task);
    if (timed) {
      const double t = now();
      op.seconds += t - mark;
      mark = t;
    }
  }
}

bool Program::run(const StepArrays& step) {
  require(finished_, "a program must be finished before it runs");
  const std::lock_guard<std::mutex> lock(run_mutex_);
  check_step(step, rules_);
  check_inputs(step);
  check_weights();
  require(!step.targets || step.num_targets == counters_->size(),
          "step: counter_targets must have one entry per counter of the program");
  const std::uint64_t wanted = wanted_taps(step);
  std::vector<GroupView> groups(rules_.groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    groups[g] = {step.block_tables[g].data, step.block_tables[g].columns, step.slots[g].data};
  }
  const StepView view{static_cast<int>(step.token_ids.size),
                      static_cast<int>(step.seq_lens.size),
                      static_cast<int>(step.logit_rows.size),
                      step.token_ids.data,
                      step.positions.data,
                      step.query_start.data,
                      groups.data(),
                      step.logit_rows.data};
  const int num_threads = pool_->num_threads();
  const auto is_small = [&](int rows) { return num_threads > 1 && rows <= kReplicatedRows; };
  const Split split[2] = {
      {view.num_tokens, num_threads == 1 || view.num_tokens >= kRowsPerThread * num_threads,
       is_small(view.num_tokens)},
      {view.num_logit_rows, num_threads == 1, is_small(view.num_logit_rows)}};
  current_ = &step;
  choose_ops(view, split, wanted);
  failure_ = nullptr;
  pool_->run([&](int thread) { execute(thread, view, split); });
  current_ = nullptr;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  const bool same = last_taps_ == wanted && last_rows_[0] == view.num_tokens &&
                    last_rows_[1] == view.num_logit_rows;
  last_taps_ = wanted;
  last_rows_[0] = view.num_tokens;
  last_rows_[1] = view.num_logit_rows;
  return same;
}

std::vector<std::pair<std::string, Program::Tap>> Program::taps() const {
  std::vector<std::pair<std::string, Tap>> result;
  for (std::size_t i = 0; i < taps_.size(); ++i) {
    if (!(last_taps_ >> i & 1)) continue;
    const auto& [name, id] = taps_[i];
    const Value& v = *values_[id];
    const std::int64_t rows = last_rows_[static_cast<int>(v.info.rows)];
    result.emplace_back(name, Tap{v.buffer.data, rows, v.info.width, v.buffer.ld, v.info.dtype,
                                  tap_memory_.at(root(id))});
  }
  return result;
}

void Program::set_profiling(bool on) {
  profiling_ = on;
  wait_seconds_ = 0.0;
  for (Op& op : ops_) op.seconds = 0.0;
}

std::vector<std::pair<std::string, double>> Program::profile() const {
  std::vector<std::pair<std::string, double>> result;
  for (const Op& op : ops_) result.emplace_back(op.name, op.seconds);
  result.emplace_back("wait", wait_seconds_);
  return result;
}

}  // namespace octavo
