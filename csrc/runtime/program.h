// A step program: the ops of a forward, recorded once, run for every step.
//
// Values live in one arena, planned by lifetime; what `output` names lives outside of it. A run is
// one job of the thread pool with barriers between ops. Large steps are split by rows: then a
// thread takes its rows through chains of ops without a barrier, and buffers are planned for that
// case, the one with fewest barriers (a buffer is not reused before every thread is past its last
// reader). Steps of one or two rows spare the barriers behind norms: every thread computes those of
// all rows into memory of its own.
//
// A run may ask for some of the outputs only: then the ops that no other output (and no store into
// the KV cache, signal or call) needs are left out.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "api/kernel_table.h"
#include "pack/weights.h"
#include "runtime/counters.h"
#include "runtime/kv_cache.h"
#include "runtime/step.h"
#include "runtime/thread_pool.h"

namespace octavo {

enum class Rows : int { kTokens = 0, kLogits = 1 };

// Who may read a value: ops of the residual stream, or those that take activations. The two differ
// even where both are float32. An external input serves either, by its dtype.
enum class Format { kResidual, kAct, kInput };

struct ValueInfo {
  Rows rows;
  std::int64_t width;
  DType dtype;
  Format format;
};

// A layer of a KV cache, as an op names it.
struct KvLayer {
  std::shared_ptr<KvCache> cache;
  std::int64_t tensor;
  std::int64_t group;
  std::int64_t num_kv_heads;
  std::int64_t head_dim;
};

// Rows of a value as a call on the host sees them, and may change them.
struct HostRows {
  void* data;
  std::int64_t rows, width, ld;
  DType dtype;
};

struct HeadNorm {
  std::shared_ptr<PackedVector> q, k;
  float eps = 0.0f, offset = 0.0f;
};

// Places in the tables of kernels.
inline int index(DType dtype) { return static_cast<int>(dtype); }
inline int index(WeightFormat format) { return static_cast<int>(format); }

class Program {
 public:
  // Steps with so many tokens per thread are split by rows. Every thread then reads all weights,
  // but activations stay in its own cache: 2 to 4 % faster from 16 rows on (two threads, 576 to
  // 1536 wide, in one L3 cache or two); below, a step is bound by reading weights.
  static constexpr std::int64_t kRowsPerThread = 16;

  // Up to so many rows every thread normalizes all of them itself: a norm of a row takes about as
  // long as a barrier.
  static constexpr std::int64_t kReplicatedRows = 2;

  // Outputs of a program; one bit each.
  static constexpr int kMaxTaps = 63;

  Program(std::shared_ptr<ThreadPool> pool, std::shared_ptr<const KernelTable> kernels, DType act,
          const StepLimits& limits);

  // Recording. Values are ids; every call checks its arguments and throws Error.
  int input(const std::string& name, std::int64_t width, DType dtype);
  void output(const std::string& name, int x);
  int embedding(std::shared_ptr<PackedTable> table, float scale);
  int embedding(std::shared_ptr<PackedLinear> table, float scale);
  int select_rows(int x);
  int rms_norm(int x, std::shared_ptr<PackedVector> weight, int residual, float eps, float offset);
  int linear(int x, std::shared_ptr<PackedLinear> weight, int residual);
  int gated_linear(int x, std::shared_ptr<PackedLinear> weight, Activation activation);
  int qkv_rope_store(int x, std::shared_ptr<PackedLinear> weight, const KvLayer& kv,
                     const HeadShape& heads, std::shared_ptr<RopeTable> rope, const HeadNorm& norm);
  int attention(int q, const KvLayer& kv, const HeadShape& heads, float scale, int window,
                float soft_cap, std::shared_ptr<PackedVector> sinks);
  int logits(int x, std::shared_ptr<PackedLinear> weight, float scale, float soft_cap);
  int argmax(int x, std::shared_ptr<PackedLinear> weight, float scale, float soft_cap);
  int layer_norm(int x, std::shared_ptr<PackedVector> weight, std::shared_ptr<PackedVector> bias,
                 float eps);
  // A copy of x after `call` has been given all its rows, on the thread that runs the program. What
  // `call` throws ends the run.
  int host_call(int x, std::function<void(const HostRows&)> call);
  void signal(int counter);
  void wait(int counter);
  void finish();  // plans memory; after it, only runs

  const ValueInfo& info(int value) const;
  std::int64_t bytes() const;

  // Returns whether the outputs are those of the last run: the same ones, of as many rows.
  bool run(const StepArrays& step);

  // A named output of the last run.
  struct Tap {
    const void* data;
    std::int64_t rows, width, ld;
    DType dtype;
    std::shared_ptr<Region> owner;
  };
  std::vector<std::pair<std::string, Tap>> taps() const;

  // Of `signal` and `wait`.
  const std::shared_ptr<Counters>& counters() const { return counters_; }

  // Seconds that thread 0 spent per op and waiting, since profiling was switched on.
  void set_profiling(bool on);
  std::vector<std::pair<std::string, double>> profile() const;

 private:
  struct Value {
    ValueInfo info;
    std::int64_t max_rows;
    Buffer buffer{};
    std::vector<Buffer> replicas;  // of kReplicatedRows rows, one per thread; empty: none
    bool is_tap = false;
    bool operand = false;       // read by a linear op
    bool needs_shared = false;  // read by an op that does not know replicas
    int shares = -1;            // updated in place: the value whose memory it takes
    int first = -1, last = -1;  // ops that write it and last use it
  };
  struct Op {
    const char* name;
    Rows rows;
    std::vector<int> reads, writes;
    std::function<void(const Task&)> run;
    bool row_local = true;          // split by rows, it reads and writes nothing of other rows
    bool skip_by_rows = false;      // the op before does it all where rows are split
    bool replicates = false;        // every thread may compute all rows for itself
    bool writes_halves = false;     // not split by rows, a thread writes half of each of its panels
    bool splits_rows = false;       // always: a thread takes the same rows as of other such ops
    bool follows_columns = false;   // not split by rows, it takes what the thread has just written
    std::int64_t weight_bytes = 0;  // of a product
    std::optional<KvAhead> attends;              // what it reads of the KV cache
    bool has_effects = false;                    // needed whatever is asked for
    bool can_fail = false;                       // sets failure_
    std::function<bool(const Task&)> is_needed;  // in this step; null: always
    // Planned by finish():
    std::uint64_t taps = 0;             // that need it
    bool free_behind = false;           // no barrier after replicating ops before it
    const KvAhead* kv_ahead = nullptr;  // what it fetches
    double seconds = 0.0;
  };
  // How the ops of one kind of rows are dealt out in a step.
  struct Split {
    int rows;
    bool by_rows, replicated;
  };

  int add_value(const ValueInfo& info, std::int64_t max_rows = -1);
  int add_residual(Rows rows, std::int64_t width);  // float32
  int add_act(Rows rows, std::int64_t width);
  Value& value(int id);
  Value& read(int id);
  const ValueInfo& read_residual(int id);
  const ValueInfo& read_residual(int id, const ValueInfo& like, std::int64_t width);
  const ValueInfo& act_info(int id, std::int64_t width);
  const ValueInfo& read_act(int id, std::int64_t width);
  // What a linear op multiplies (x, or its quantized form), and where it lies in a step.
  int operand(int x, const PackedLinear& weight, bool gated);
  bool follows_columns(int x, std::int64_t groups, int group) const;
  void read_operand(int id);
  static const Buffer* buffer_of(const Value& value, const Task& task) {
    return task.replicated && !value.replicas.empty() ? &value.replicas[task.thread]
                                                      : &value.buffer;
  }
  static Task share_of(const Value& out, const Task& task);
  Op& add_op(const char* name, Rows rows, std::vector<int> writes,
             std::function<void(const Task&)> run);
  Op& add_norm(const char* name, Rows rows, int out, NormArgs args,
               std::shared_ptr<PackedVector> weight, std::shared_ptr<PackedVector> bias,
               void (*kernel)(const NormArgs&, const Task&));
  void use_counter(int counter);
  void need_scratch(std::int64_t bytes);
  void use_kv(const KvLayer& kv, const HeadShape& heads);
  GroupUse& group_use(std::int64_t group);
  void keep(std::shared_ptr<const void> object) { kept_.push_back(std::move(object)); }
  void keep_weight(std::shared_ptr<Packed> weight) { weights_.push_back(std::move(weight)); }

  int root(int id) const;
  void share_in_place();
  void plan_taps();
  void plan_replicas();
  void plan_memory();
  void plan_fetches();
  bool needs_barrier(std::size_t op, const Split split[2]) const;

  void check_weights() const;
  void check_inputs(const StepArrays& step) const;
  std::uint64_t wanted_taps(const StepArrays& step) const;
  void choose_ops(const StepView& step, const Split split[2], std::uint64_t wanted);
  void execute(int thread, const StepView& step, const Split split[2]);
  void fail() noexcept { failure_ = std::current_exception(); }

  std::shared_ptr<ThreadPool> pool_;
  std::shared_ptr<const KernelTable> kernels_;
  DType act_;
  StepRules rules_;
  bool finished_ = false;

  std::vector<std::unique_ptr<Value>> values_;
  std::vector<Op> ops_;
  std::vector<std::pair<int, int>> in_place_;           // (residual, result)
  std::map<std::tuple<int, int, int>, int> quantized_;  // (value, group, zero point) → int8 form
  std::vector<std::pair<std::string, int>> taps_;
  std::vector<int> reading_;  // by the op about to be added
  std::vector<std::shared_ptr<const void>> kept_;
  std::vector<std::shared_ptr<Packed>> weights_;
  std::shared_ptr<Counters> counters_ = std::make_shared<Counters>();
  std::shared_ptr<KvCache> cache_;
  std::map<std::string, int> inputs_;

  std::unique_ptr<Region> arena_;
  std::map<int, std::shared_ptr<Region>> tap_memory_;
  std::int64_t scratch_bytes_ = 0;
  std::int64_t partial_rows_ = 0, partial_width_ = 0;
  AttentionPartials partials_{};
  std::int64_t argmax_rows_ = 0;
  ArgmaxPartials argmax_partials_{};
  char* scratch_ = nullptr;
  std::mutex run_mutex_;
  const StepArrays* current_ = nullptr;
  std::vector<char> runs_;       // by op: whether this step needs it
  std::exception_ptr failure_;   // of this step
  std::uint64_t last_taps_ = 0;  // that the last run computed
  std::int64_t last_rows_[2] = {0, 0};
  bool profiling_ = false;
  double wait_seconds_ = 0.0;
};

}  // namespace octavo
