// A step program: the ops of a forward, recorded once, run for every step.
//
// Values live in one arena, planned by lifetime; what `output` names lives outside of it. A run is
// one job of the thread pool with barriers between ops. Large steps are split by rows: then a
// thread takes its rows through chains of ops without a barrier, and buffers are planned for that
// case, the one with fewest barriers (a buffer is not reused before every thread is past its last
// reader).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "api/kernel_table.h"
#include "pack/weights.h"
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

struct HeadNorm {
  std::shared_ptr<PackedVector> q, k;
  float eps = 0.0f, offset = 0.0f;
};

class Program {
 public:
  // Steps with so many tokens per thread are split by rows. Every thread then reads all weights,
  // but activations stay in its own cache: 2 to 4 % faster from 16 rows on (two threads, 576 to
  // 1536 wide, in one L3 cache or two); below, a step is bound by reading weights.
  static constexpr std::int64_t kRowsPerThread = 16;

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
  void finish();  // plans memory; after it, only runs

  const ValueInfo& info(int value) const;
  std::int64_t bytes() const;

  void run(const StepArrays& step);

  // A named output of the last run.
  struct Tap {
    const void* data;
    std::int64_t rows, width, ld;
    DType dtype;
    std::shared_ptr<Region> owner;
  };
  const std::vector<std::pair<std::string, int>>& taps() const { return taps_; }
  Tap tap(int value) const;

  // Seconds that thread 0 spent per op and waiting, since profiling was switched on.
  void set_profiling(bool on);
  std::vector<std::pair<std::string, double>> profile() const;

 private:
  struct Value {
    ValueInfo info;
    std::int64_t max_rows;
    Buffer buffer{};
    bool is_tap = false;
    bool operand = false;       // read by a linear op
    int shares = -1;            // updated in place: the value whose memory it takes
    int first = -1, last = -1;  // ops that write it and last read it
  };
  struct Op {
    const char* name;
    Rows rows;
    bool row_local;  // split by rows, it reads and writes nothing of other rows
    bool skip_by_rows;
    std::function<void(const Task&)> run;
    double seconds = 0.0;
  };

  int add_value(const ValueInfo& info, std::int64_t max_rows = -1);
  int add_residual(Rows rows, std::int64_t width);  // float32
  int add_act(Rows rows, std::int64_t width);
  Value& value(int id);
  Value& read(int id);
  const ValueInfo& read_residual(int id);
  const ValueInfo& read_residual(int id, const ValueInfo& like, std::int64_t width);
  const ValueInfo& read_act(int id, std::int64_t width);
  int operand(int x, const PackedLinear& weight, bool gated);
  void add_op(const char* name, Rows rows, int writes, std::function<void(const Task&)> run,
              bool row_local = true, bool skip_by_rows = false);
  void need_scratch(std::int64_t bytes);
  void use_kv(const KvLayer& kv, const HeadShape& heads);
  GroupUse& group_use(std::int64_t group);
  void keep(std::shared_ptr<const void> object) { kept_.push_back(std::move(object)); }
  int root(int id) const;
  void share_in_place();
  void plan_memory();
  bool needs_barrier(std::size_t op, const bool by_rows[2]) const;
  void execute(int thread, const StepView& step);

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
  std::vector<std::shared_ptr<const void>> kept_;
  std::shared_ptr<KvCache> cache_;
  std::map<std::string, int> inputs_;

  std::unique_ptr<Region> arena_;
  std::map<int, std::shared_ptr<Region>> tap_memory_;
  std::int64_t scratch_bytes_ = 0;
  std::int64_t partial_rows_ = 0, partial_width_ = 0;
  AttentionPartials partials_{};
  char* scratch_ = nullptr;
  std::mutex run_mutex_;
  const StepArrays* current_ = nullptr;
  std::int64_t last_rows_[2] = {0, 0};
  bool profiling_ = false;
  double wait_seconds_ = 0.0;
};

}  // namespace octavo
