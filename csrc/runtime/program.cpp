#include "runtime/program.h"

#include <algorithm>
#include <chrono>

#include "runtime/arena.h"
#include "runtime/error.h"

namespace octavo {
namespace {

constexpr std::int64_t kMaxRows = 1 << 20;
constexpr std::int64_t kMaxPositions = 1 << 30;

double now() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

std::int64_t padded_width(std::int64_t width) {
  return (width + kColumnPad - 1) / kColumnPad * kColumnPad;
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

int Program::root(int id) const {
  while (values_[id]->shares >= 0) id = values_[id]->shares;
  return id;
}

// A result that may take its residual's memory does so where nothing else reads the residual later.
void Program::share_in_place() {
  for (const auto& [residual, result] : in_place_) {
    const Value& old = *values_[residual];
    Value& next = *values_[result];
    if (old.is_tap || old.last != next.first) continue;
    const int target = root(residual);
    Value& base = *values_[target];
    next.shares = target;
    base.last = std::max(base.last, next.last);
    base.is_tap = base.is_tap || next.is_tap;
    base.operand = base.operand || next.operand;
  }
}

bool Program::needs_barrier(std::size_t op, const bool by_rows[2]) const {
  if (op == 0) return false;
  const Op& a = ops_[op - 1];
  const Op& b = ops_[op];
  const bool chained = a.rows == b.rows && by_rows[static_cast<int>(a.rows)];
  return !(chained && a.row_local && b.row_local);
}

void Program::plan_memory() {
  const bool by_rows[2] = {true, true};
  std::vector<int> epochs(ops_.size(), 0);
  for (std::size_t i = 1; i < ops_.size(); ++i) {
    epochs[i] = epochs[i - 1] + (needs_barrier(i, by_rows) ? 1 : 0);
  }
  std::vector<Lifetime> lifetimes;
  std::vector<Value*> planned;
  for (std::size_t id = 0; id < values_.size(); ++id) {
    Value& v = *values_[id];
    if (v.shares >= 0) continue;
    v.buffer.ld = padded_width(v.info.width);
    const std::int64_t item = element_bytes(v.info.dtype);
    // Rows a multiple of 1 KB apart would fall into the same few cache sets.
    if (v.operand && !v.is_tap && v.buffer.ld * item % 1024 == 0) v.buffer.ld += kColumnPad;
    const std::int64_t bytes = v.max_rows * v.buffer.ld * item;
    if (v.is_tap) {
      auto region = std::make_shared<Region>(bytes, bytes >= (4 << 20));
      v.buffer.data = region->data();
      tap_memory_[static_cast<int>(id)] = std::move(region);
    } else {
      lifetimes.push_back({bytes, epochs[v.first], epochs[std::max(v.first, v.last)]});
      planned.push_back(&v);
    }
  }
  const ArenaPlan plan = plan_arena(lifetimes);
  const std::int64_t buffers = (plan.bytes + 4095) / 4096 * 4096;
  scratch_bytes_ = (scratch_bytes_ + 4095) / 4096 * 4096;
  const std::int64_t scratch = scratch_bytes_ * pool_->num_threads();
  const std::int64_t partials = partial_rows_ * (partial_width_ + 2) * 4;
  arena_ = std::make_unique<Region>(buffers + scratch + partials, true);
  for (std::size_t i = 0; i < planned.size(); ++i) {
    planned[i]->buffer.data = arena_->data() + plan.offsets[i];
  }
  for (std::size_t id = 0; id < values_.size(); ++id) {
    Value& v = *values_[id];
    if (v.shares >= 0) v.buffer = values_[root(static_cast<int>(id))]->buffer;
  }
  scratch_ = arena_->data() + buffers;
  partials_.out = reinterpret_cast<float*>(scratch_ + scratch);
  partials_.max = partials_.out + partial_rows_ * partial_width_;
  partials_.sum = partials_.max + partial_rows_;
}

void Program::finish() {
  require(!finished_, "this program is finished");
  require(!taps_.empty(), "a forward must call output() at least once");
  share_in_place();
  plan_memory();
  finished_ = true;
}

std::int64_t Program::bytes() const {
  std::int64_t total = arena_ ? arena_->bytes() : 0;
  for (const auto& [id, region] : tap_memory_) total += region->bytes();
  return total;
}

void Program::execute(int thread, const StepView& step) {
  const int num_threads = pool_->num_threads();
  const int rows[2] = {step.num_tokens, step.num_logit_rows};
  const bool by_rows[2] = {num_threads == 1 || rows[0] >= kRowsPerThread * num_threads,
                           num_threads == 1};
  Task task{thread, num_threads, 0, false, scratch_ + thread * scratch_bytes_, &step};
  const bool timed = profiling_ && thread == 0;
  double mark = timed ? now() : 0.0;
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    Op& op = ops_[i];
    if (num_threads > 1 && needs_barrier(i, by_rows)) pool_->barrier(thread);
    if (timed) {
      const double t = now();
      wait_seconds_ += t - mark;
      mark = t;
    }
    task.rows = rows[static_cast<int>(op.rows)];
    task.by_rows = by_rows[static_cast<int>(op.rows)];
    if (!(op.skip_by_rows && task.by_rows)) op.run(task);
    if (timed) {
      const double t = now();
      op.seconds += t - mark;
      mark = t;
    }
  }
}

void Program::run(const StepArrays& step) {
  require(finished_, "a program must be finished before it runs");
  const std::lock_guard<std::mutex> lock(run_mutex_);
  check_step(step, rules_);
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
  current_ = &step;
  pool_->run([&](int thread) { execute(thread, view); });
  current_ = nullptr;
  last_rows_[0] = view.num_tokens;
  last_rows_[1] = view.num_logit_rows;
}

Program::Tap Program::tap(int value) const {
  const Value& v = *values_[value];
  return {v.buffer.data, last_rows_[static_cast<int>(v.info.rows)],
          v.info.width,  v.buffer.ld,
          v.info.dtype,  tap_memory_.at(root(value))};
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
