// The recording half of Program: argument checks, and one closure per op. Weights are looked up
// when an op runs, because they may have been swapped.
#include <algorithm>
#include <utility>

#include "runtime/error.h"
#include "runtime/program.h"

namespace octavo {
namespace {

constexpr std::int64_t kMaxWidth = 1 << 24;

}  // namespace

const ValueInfo& Program::info(int id) const {
  require(id >= 0 && id < static_cast<int>(values_.size()), "unknown value");
  return values_[id]->info;
}

Program::Value& Program::value(int id) {
  info(id);
  return *values_[id];
}

// A use by the op about to be added, which takes no replica.
Program::Value& Program::read(int id) {
  Value& v = value(id);
  v.needs_shared = true;
  reading_.push_back(id);
  return v;
}

const ValueInfo& Program::read_residual(int id) {
  const ValueInfo& info = read(id).info;
  require(info.dtype == DType::kF32 && info.format != Format::kAct,
          "this op reads the residual stream: float32, and no activations");
  return info;
}

const ValueInfo& Program::read_residual(int id, const ValueInfo& like, std::int64_t width) {
  const ValueInfo& info = read_residual(id);
  require(info.width == width && info.rows == like.rows, "the residual does not match the result");
  return info;
}

const ValueInfo& Program::act_info(int id, std::int64_t width) {
  const ValueInfo& info = value(id).info;
  require(info.dtype == act_ && info.format != Format::kResidual,
          "this op reads values in the activation format only");
  require(info.width == width, "the value's width is not what the op reads");
  return info;
}

const ValueInfo& Program::read_act(int id, std::int64_t width) {
  read(id);
  return act_info(id, width);
}

// A use by the op about to be added, which looks for its `buffer_of` in every step.
void Program::read_operand(int id) {
  Value& v = value(id);
  v.operand = true;
  reading_.push_back(id);
}

int Program::add_value(const ValueInfo& info, std::int64_t max_rows) {
  require(!finished_, "this program is finished");
  require(info.width > 0 && info.width <= kMaxWidth, "a value's width must be in 1…2^24");
  auto v = std::make_unique<Value>();
  v->info = info;
  if (max_rows < 0) {
    const bool tokens = info.rows == Rows::kTokens;
    max_rows = tokens ? rules_.limits.max_tokens : rules_.limits.max_logit_rows;
  }
  v->max_rows = max_rows;
  values_.push_back(std::move(v));
  return static_cast<int>(values_.size()) - 1;
}

int Program::add_residual(Rows rows, std::int64_t width) {
  return add_value({rows, width, DType::kF32, Format::kResidual});
}

int Program::add_act(Rows rows, std::int64_t width) {
  return add_value({rows, width, act_, Format::kAct});
}

Program::Op& Program::add_op(const char* name, Rows rows, std::vector<int> writes,
                             std::function<void(const Task&)> run) {
  require(!finished_, "this program is finished");
  const int index = static_cast<int>(ops_.size());
  for (const int id : writes) {
    Value& v = *values_[id];
    if (v.first < 0) v.first = index;
    v.last = index;
  }
  for (const int id : reading_) values_[id]->last = index;
  Op op{};
  op.name = name;
  op.rows = rows;
  op.reads = std::exchange(reading_, {});
  op.writes = std::move(writes);
  op.run = std::move(run);
  ops_.push_back(std::move(op));
  return ops_.back();
}

void Program::need_scratch(std::int64_t bytes) { scratch_bytes_ = std::max(scratch_bytes_, bytes); }

int Program::embedding(std::shared_ptr<PackedTable> table, float scale) {
  rules_.vocab = rules_.vocab ? std::min(rules_.vocab, table->rows()) : table->rows();
  const int out = add_residual(Rows::kTokens, table->columns());
  const auto run = [kernel = kernels_->embedding_rows[index(table->dtype())], table, scale,
                    to = values_[out].get()](const Task& task) {
    kernel({table->table(), nullptr, &to->buffer, static_cast<int>(table->columns()), scale}, task);
  };
  keep_weight(std::move(table));
  add_op("embedding", Rows::kTokens, {out}, run);
  return out;
}

int Program::embedding(std::shared_ptr<PackedLinear> table, float scale) {
  require(!table->gated(), "a gated weight is no embedding table");
  const LinearWeight& w = table->weight();
  rules_.vocab = rules_.vocab ? std::min<std::int64_t>(rules_.vocab, w.n) : w.n;
  const int out = add_residual(Rows::kTokens, w.k);
  const EmbeddingArgs args{{}, &w, &values_[out]->buffer, w.k, scale};
  const auto kernel = kernels_->embedding_panels[index(table->format())];
  keep_weight(std::move(table));
  add_op("embedding", Rows::kTokens, {out}, [=](const Task& task) { kernel(args, task); });
  return out;
}

// A thread's part of an op that may replicate: all of it where the thread has a copy of its own.
Task Program::share_of(const Value& out, const Task& task) {
  Task share = task;
  if (buffer_of(out, task) != &out.buffer) {
    share.thread = 0;
    share.num_threads = 1;
  }
  return share;
}

// A norm whose result is an activation: in small steps every thread computes all of it.
Program::Op& Program::add_norm(const char* name, Rows rows, int out, NormArgs args,
                               std::shared_ptr<PackedVector> weight,
                               std::shared_ptr<PackedVector> bias,
                               void (*kernel)(const NormArgs&, const Task&)) {
  const auto run = [=, to = values_[out].get()](const Task& task) {
    NormArgs own = args;
    own.weight = weight->data();
    own.bias = bias ? bias->data() : nullptr;
    own.out = buffer_of(*to, task);
    kernel(own, share_of(*to, task));
  };
  keep_weight(std::move(weight));
  if (bias) keep_weight(std::move(bias));
  Op& op = add_op(name, rows, {out}, run);
  op.splits_rows = true;
  return op;
}

int Program::rms_norm(int x, std::shared_ptr<PackedVector> weight, int residual, float eps,
                      float offset) {
  const ValueInfo info = read_residual(x);
  require(weight->size() == info.width, "the norm weight's size is not the value's width");
  const bool adds = residual >= 0;
  if (adds) read_residual(residual, info, info.width);
  const int out = adds ? add_residual(info.rows, info.width) : add_act(info.rows, info.width);
  NormArgs args{};
  args.x = &values_[x]->buffer;
  args.residual = adds ? &values_[residual]->buffer : nullptr;
  args.width = static_cast<int>(info.width);
  args.eps = eps;
  args.offset = offset;
  if (adds && x != residual) in_place_.emplace_back(residual, out);
  const auto kernel = adds ? kernels_->rms_norm_add : kernels_->rms_norm[index(act_)];
  Op& op = add_norm(adds ? "rms_norm_add" : "rms_norm", info.rows, out, args, std::move(weight),
                    nullptr, kernel);
  op.replicates = !adds;
  return out;
}

int Program::layer_norm(int x, std::shared_ptr<PackedVector> weight,
                        std::shared_ptr<PackedVector> bias, float eps) {
  const ValueInfo info = read_residual(x);
  require(weight->size() == info.width && (!bias || bias->size() == info.width),
          "the sizes of the norm's weight and bias are not the value's width");
  const int out = add_act(info.rows, info.width);
  NormArgs args{};
  args.x = &values_[x]->buffer;
  args.width = static_cast<int>(info.width);
  args.eps = eps;
  add_norm("layer_norm", info.rows, out, args, std::move(weight), std::move(bias),
           kernels_->layer_norm[index(act_)])
      .replicates = true;
  return out;
}

// Whether threads that have just written x by panels of 16 columns hold whole groups of it.
bool Program::follows_columns(int x, std::int64_t groups, int group) const {
  constexpr int kColumns = kPanel / 2;
  const Value& v = *values_[x];
  const bool is_last = v.first == static_cast<int>(ops_.size()) - 1;
  return is_last && ops_.back().writes_halves && v.info.width == groups * group &&
         group % kColumns == 0 && groups % pool_->num_threads() == 0;
}

// What a linear op multiplies: x, or for a quantized weight its int8 form, made once per value and
// kind of group.
int Program::operand(int x, const PackedLinear& weight, bool gated) {
  require(weight.gated() == gated,
          gated ? "gated_linear needs a gated weight" : "only gated_linear takes a gated weight");
  const LinearWeight& w = weight.weight();
  const ValueInfo info = act_info(x, w.k);
  if (w.format == WeightFormat::kF32 || w.format == WeightFormat::kBf16) {
    const DType dtype = w.format == WeightFormat::kF32 ? DType::kF32 : DType::kBf16;
    require(dtype == act_, "the weight is of another dtype than activations");
    read_operand(x);
    return x;
  }
  const WeightTraits& traits = traits_of(w.format);
  const auto [known, is_new] = quantized_.try_emplace({x, traits.group, traits.zero_point}, -1);
  if (is_new) {
    read_operand(x);
    const std::int64_t groups = w.k_padded / traits.group, words = traits.has_outlier ? 4 : 2;
    const int out =
        add_value({info.rows, w.k_padded / 4 + words * groups, DType::kF32, Format::kAct});
    known->second = out;
    const bool follows = follows_columns(x, groups, traits.group);
    const QuantizeArgs args{nullptr,           nullptr,        w.k,  w.k_padded, traits.group,
                            traits.zero_point, traits.has_min, false};
    const auto run = [args, kernel = kernels_->quantize[index(act_)], from = values_[x].get(),
                      to = values_[out].get(), follows](const Task& task) {
      QuantizeArgs own = args;
      own.by_columns = follows && !task.by_rows;
      own.x = buffer_of(*from, task);
      own.out = buffer_of(*to, task);
      kernel(own, share_of(*to, task));
    };
    Op& op = add_op("quantize", info.rows, {out}, run);
    op.follows_columns = follows;
    op.replicates = op.splits_rows = !follows;
  }
  read_operand(known->second);
  return known->second;
}

int Program::linear(int x, std::shared_ptr<PackedLinear> weight, int residual) {
  const LinearWeight& w = weight->weight();
  const int input = operand(x, *weight, false);
  const ValueInfo info = values_[x]->info;
  const bool adds = residual >= 0;
  if (adds) read_residual(residual, info, w.n);
  const int out = add_residual(info.rows, w.n);
  const LinearArgs args{nullptr, &w, adds ? &values_[residual]->buffer : nullptr,
                        &values_[out]->buffer};
  const auto run = [args, kernel = kernels_->linear[index(w.format)],
                    from = values_[input].get()](const Task& task) {
    LinearArgs own = args;
    own.x = buffer_of(*from, task);
    kernel(own, task);
  };
  keep_weight(std::move(weight));
  need_scratch(kernels_->gemm_scratch(1));
  if (adds && x != residual) in_place_.emplace_back(residual, out);
  add_op(adds ? "linear_add" : "linear", info.rows, {out}, run).weight_bytes =
      w.num_panels * w.panel_bytes;
  return out;
}

int Program::gated_linear(int x, std::shared_ptr<PackedLinear> weight, Activation activation) {
  const LinearWeight& w = weight->weight();
  const int input = operand(x, *weight, true);
  const ValueInfo info = values_[x]->info;
  const int out = add_act(info.rows, w.n / 2);
  const GatedArgs args{nullptr, &w, &values_[out]->buffer, activation};
  const auto run = [args, kernel = kernels_->gated_linear[index(w.format)][index(act_)],
                    from = values_[input].get()](const Task& task) {
    GatedArgs own = args;
    own.x = buffer_of(*from, task);
    kernel(own, task);
  };
  keep_weight(std::move(weight));
  need_scratch(kernels_->gemm_scratch(1));
  Op& op = add_op("gated_linear", info.rows, {out}, run);
  op.weight_bytes = w.num_panels * w.panel_bytes;
  op.writes_halves = true;
  return out;
}

int Program::logits(int x, std::shared_ptr<PackedLinear> weight, float scale, float soft_cap) {
  require(soft_cap >= 0.0f, "soft_cap must not be negative");
  const LinearWeight& w = weight->weight();
  const int input = operand(x, *weight, false);
  require(values_[x]->info.rows == Rows::kLogits, "logits read a value with rows LOGITS");
  const int out = add_residual(Rows::kLogits, w.n);
  const LogitsArgs args{nullptr, &w, &values_[out]->buffer, scale, soft_cap};
  const auto run = [args, kernel = kernels_->logits[index(w.format)],
                    from = values_[input].get()](const Task& task) {
    LogitsArgs own = args;
    own.x = buffer_of(*from, task);
    kernel(own, task);
  };
  keep_weight(std::move(weight));
  need_scratch(kernels_->gemm_scratch(1));
  add_op("logits", Rows::kLogits, {out}, run).weight_bytes = w.num_panels * w.panel_bytes;
  return out;
}

int Program::argmax(int x, std::shared_ptr<PackedLinear> weight, float scale, float soft_cap) {
  constexpr int kExactInFloat = 1 << 24;
  require(soft_cap >= 0.0f, "soft_cap must not be negative");
  const LinearWeight& w = weight->weight();
  require(w.n <= kExactInFloat, "argmax takes at most 2^24 columns");
  const int input = operand(x, *weight, false);
  require(values_[x]->info.rows == Rows::kLogits, "argmax reads a value with rows LOGITS");
  const int out = add_residual(Rows::kLogits, 2);
  const ArgmaxArgs args{{nullptr, &w, &values_[out]->buffer, scale, soft_cap}, &argmax_partials_};
  const auto run = [args, kernel = kernels_->argmax[index(w.format)],
                    from = values_[input].get()](const Task& task) {
    ArgmaxArgs own = args;
    own.logits.x = buffer_of(*from, task);
    kernel(own, task);
  };
  keep_weight(std::move(weight));
  need_scratch(kernels_->gemm_scratch(1));
  argmax_rows_ = std::max(argmax_rows_, rules_.limits.max_logit_rows);
  add_op("argmax", Rows::kLogits, {out}, run).weight_bytes = w.num_panels * w.panel_bytes;
  const auto merge = kernels_->argmax_merge;
  add_op("argmax_merge", Rows::kLogits, {out}, [=](const Task& task) { merge(args, task); });
  return out;
}

}  // namespace octavo
