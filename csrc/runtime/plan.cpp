// The planning half of Program: what finish() works out from the recorded ops.
#include <algorithm>

#include "runtime/arena.h"
#include "runtime/error.h"
#include "runtime/program.h"

namespace octavo {
namespace {

std::int64_t to_pages(std::int64_t bytes) { return round_to(bytes, 4096); }

}  // namespace

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

// From the last op to the first: an op serves the outputs that its results serve. What an op with
// effects reads is needed always.
void Program::plan_taps() {
  constexpr std::uint64_t kAlways = ~std::uint64_t{0};
  std::vector<std::uint64_t> serves(values_.size(), 0);
  for (std::size_t i = 0; i < taps_.size(); ++i) serves[taps_[i].second] |= std::uint64_t{1} << i;
  for (std::size_t i = ops_.size(); i-- > 0;) {
    Op& op = ops_[i];
    op.taps = op.has_effects ? kAlways : 0;
    for (const int id : op.writes) op.taps |= serves[id];
    for (const int id : op.reads) serves[id] |= op.taps;
    // The top bit marks what is needed without any output.
    op.has_effects = op.has_effects || op.taps >> kMaxTaps & 1;
  }
}

// Which results of replicating ops every thread may have for itself, and which ops behind them need
// no barrier: those that do not write, in place, what a slower thread may still be reading.
void Program::plan_replicas() {
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    Op& op = ops_[i];
    if (!op.replicates) continue;
    const Value& out = *values_[op.writes[0]];
    op.replicates = pool_->num_threads() > 1 && !out.is_tap && !out.needs_shared;
  }
  for (std::size_t i = 1; i < ops_.size(); ++i) {
    Op& op = ops_[i];
    const Op& before = ops_[i - 1];
    op.free_behind = before.replicates && before.rows == op.rows && op.row_local;
    for (std::size_t j = i; j-- > 0 && ops_[j].replicates;) {
      for (const int read : ops_[j].reads) {
        for (const int written : op.writes) {
          if (root(read) == root(written)) op.free_behind = false;
        }
      }
    }
  }
}

bool Program::needs_barrier(std::size_t op, const Split split[2]) const {
  if (op == 0) return false;
  const Op& a = ops_[op - 1];
  const Op& b = ops_[op];
  const Split& s = split[static_cast<int>(b.rows)];
  if (b.free_behind && s.replicated) return false;
  if (a.rows != b.rows) return true;
  if (s.by_rows) return !(a.row_local && b.row_local);
  if (b.follows_columns) return false;
  return s.replicated || !(a.splits_rows && b.splits_rows);
}

void Program::plan_memory() {
  const Split by_rows[2] = {{0, true, false}, {0, true, false}};
  std::vector<int> epochs(ops_.size(), 0);
  for (std::size_t i = 1; i < ops_.size(); ++i) {
    epochs[i] = epochs[i - 1] + (needs_barrier(i, by_rows) ? 1 : 0);
  }
  std::vector<Lifetime> lifetimes;
  std::vector<Buffer*> planned;
  for (std::size_t id = 0; id < values_.size(); ++id) {
    Value& v = *values_[id];
    if (v.shares >= 0) continue;
    v.buffer.ld = round_to(v.info.width, kColumnPad);
    const std::int64_t item = element_bytes(v.info.dtype);
    // Rows a multiple of 1 KB apart would fall into the same few cache sets.
    if (v.operand && !v.is_tap && v.buffer.ld * item % 1024 == 0) v.buffer.ld += kColumnPad;
    const std::int64_t bytes = v.max_rows * v.buffer.ld * item;
    if (v.is_tap) {
      auto region = std::make_shared<Region>(bytes, bytes >= (4 << 20));
      v.buffer.data = region->data();
      tap_memory_[static_cast<int>(id)] = std::move(region);
      continue;
    }
    const auto add = [&](Buffer& buffer, std::int64_t size) {
      lifetimes.push_back({size, epochs[v.first], epochs[v.last]});
      planned.push_back(&buffer);
    };
    add(v.buffer, bytes);
    if (ops_[v.first].replicates) {
      v.replicas.assign(pool_->num_threads(), v.buffer);
      for (Buffer& replica : v.replicas) add(replica, kReplicatedRows * v.buffer.ld * item);
    }
  }
  const ArenaPlan plan = plan_arena(lifetimes);
  const std::int64_t buffers = to_pages(plan.bytes);
  scratch_bytes_ = to_pages(scratch_bytes_);
  const std::int64_t scratch = scratch_bytes_ * pool_->num_threads();
  const std::int64_t partials = partial_rows_ * (partial_width_ + 2) * 4;
  argmax_partials_.ld = round_to(argmax_rows_, 32);  // threads write to lines of their own
  const std::int64_t best = argmax_partials_.ld * pool_->num_threads() * 4;
  arena_ = std::make_unique<Region>(buffers + scratch + to_pages(partials) + 2 * best, true);
  for (std::size_t i = 0; i < planned.size(); ++i) {
    planned[i]->data = arena_->data() + plan.offsets[i];
  }
  for (std::size_t id = 0; id < values_.size(); ++id) {
    Value& v = *values_[id];
    if (v.shares >= 0) v.buffer = values_[root(static_cast<int>(id))]->buffer;
  }
  scratch_ = arena_->data() + buffers;
  partials_.out = reinterpret_cast<float*>(scratch_ + scratch);
  partials_.max = partials_.out + partial_rows_ * partial_width_;
  partials_.sum = partials_.max + partial_rows_;
  char* bests = scratch_ + scratch + to_pages(partials);
  argmax_partials_.values = reinterpret_cast<float*>(bests);
  argmax_partials_.ids = reinterpret_cast<std::int32_t*>(bests + best);
}

// What an attention reads is fetched during the largest product since the attention before it.
void Program::plan_fetches() {
  Op* largest = nullptr;
  for (Op& op : ops_) {
    if (op.weight_bytes > (largest ? largest->weight_bytes : 0)) largest = &op;
    if (!op.attends) continue;
    if (largest) largest->kv_ahead = &*op.attends;
    largest = nullptr;
  }
}

void Program::finish() {
  require(!finished_, "this program is finished");
  require(!taps_.empty(), "a forward must call output() at least once");
  share_in_place();
  plan_taps();
  plan_replicas();
  plan_memory();
  plan_fetches();
  runs_.assign(ops_.size(), 1);
  finished_ = true;
}

std::int64_t Program::bytes() const {
  std::int64_t total = arena_ ? arena_->bytes() : 0;
  for (const auto& [id, region] : tap_memory_) total += region->bytes();
  return total;
}

}  // namespace octavo
