// The recording half of Program: argument checks, and one closure per op.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "runtime/error.h"
#include "runtime/program.h"

namespace octavo {
namespace {

constexpr std::int64_t kMaxWidth = 1 << 24;

int index(DType dtype) { return static_cast<int>(dtype); }
int index(WeightFormat format) { return static_cast<int>(format); }

std::int64_t padded_width(std::int64_t width) {
  return (width + kColumnPad - 1) / kColumnPad * kColumnPad;
}

// A thread's rows.
std::int64_t share_begin(const Task& task) {
  return static_cast<std::int64_t>(task.rows) * task.thread / task.num_threads;
}
std::int64_t share_end(const Task& task) {
  return static_cast<std::int64_t>(task.rows) * (task.thread + 1) / task.num_threads;
}

}  // namespace

const ValueInfo& Program::info(int id) const {
  require(id >= 0 && id < static_cast<int>(values_.size()), "unknown value");
  return values_[id]->info;
}

Program::Value& Program::value(int id) {
  info(id);
  return *values_[id];
}

// Marks a use by the op about to be added.
Program::Value& Program::read(int id) {
  Value& v = value(id);
  v.last = static_cast<int>(ops_.size());
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

const ValueInfo& Program::read_act(int id, std::int64_t width) {
  Value& v = read(id);
  require(v.info.dtype == act_ && v.info.format != Format::kResidual,
          "this op reads values in the activation format only");
  require(v.info.width == width, "the value's width is not what the op reads");
  v.operand = true;
  return v.info;
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

void Program::add_op(const char* name, Rows rows, int writes, std::function<void(const Task&)> run,
                     bool row_local, bool skip_by_rows) {
  require(!finished_, "this program is finished");
  if (writes >= 0) values_[writes]->first = static_cast<int>(ops_.size());
  ops_.push_back({name, rows, row_local, skip_by_rows, std::move(run)});
}

void Program::need_scratch(std::int64_t bytes) { scratch_bytes_ = std::max(scratch_bytes_, bytes); }

int Program::input(const std::string& name, std::int64_t width, DType dtype) {
  if (const auto known = inputs_.find(name); known != inputs_.end()) {
    const ValueInfo& v = info(known->second);
    if (v.width != width || v.dtype != dtype) {
      throw Error("input '" + name + "' is declared twice, differently");
    }
    return known->second;
  }
  const int out = add_value({Rows::kTokens, width, dtype, Format::kInput});
  const Buffer* to = &values_[out]->buffer;
  inputs_[name] = out;
  const auto run = [this, name, to, width, dtype](const Task& task) {
    const StepArrays::Extra& x = current_->extra.at(name);
    const std::int64_t item = element_bytes(dtype);
    const std::int64_t padding = padded_width(width) - width;
    for (std::int64_t i = share_begin(task); i < share_end(task); ++i) {
      char* row = static_cast<char*>(to->data) + i * to->ld * item;
      if (x.dtype == dtype) {
        const char* src = static_cast<const char*>(x.data) + i * x.ld * item;
        std::memcpy(row, src, static_cast<std::size_t>(width * item));
      } else {
        const float* src = static_cast<const float*>(x.data) + i * x.ld;
        std::transform(src, src + width, reinterpret_cast<bf16*>(row), to_bf16);
      }
      std::memset(row + width * item, 0, static_cast<std::size_t>(padding * item));
    }
  };
  add_op("input", Rows::kTokens, out, run, false);
  return out;
}

void Program::output(const std::string& name, int x) {
  require(!finished_, "this program is finished");
  for (const auto& [known, id] : taps_) {
    if (known == name) throw Error("output '" + name + "' is declared twice");
  }
  value(x).is_tap = true;
  taps_.emplace_back(name, x);
}

int Program::embedding(std::shared_ptr<PackedTable> table, float scale) {
  rules_.vocab = rules_.vocab ? std::min(rules_.vocab, table->rows()) : table->rows();
  const int out = add_residual(Rows::kTokens, table->columns());
  const EmbeddingArgs args{table->table(), nullptr, &values_[out]->buffer,
                           static_cast<int>(table->columns()), scale};
  const auto kernel = kernels_->embedding_rows[index(table->dtype())];
  keep(table);
  add_op("embedding", Rows::kTokens, out, [=](const Task& task) { kernel(args, task); });
  return out;
}

int Program::embedding(std::shared_ptr<PackedLinear> table, float scale) {
  require(!table->gated(), "a gated weight is no embedding table");
  const LinearWeight& w = table->weight();
  rules_.vocab = rules_.vocab ? std::min<std::int64_t>(rules_.vocab, w.n) : w.n;
  const int out = add_residual(Rows::kTokens, w.k);
  const EmbeddingArgs args{{}, &w, &values_[out]->buffer, w.k, scale};
  const auto kernel = kernels_->embedding_panels[index(table->format())];
  keep(table);
  add_op("embedding", Rows::kTokens, out, [=](const Task& task) { kernel(args, task); });
  return out;
}

int Program::select_rows(int x) {
  Value& from = read(x);
  require(from.info.rows == Rows::kTokens, "select_rows reads a value with rows TOKENS");
  const ValueInfo info = from.info;
  const int out = add_value({Rows::kLogits, info.width, info.dtype, info.format});
  const Buffer* src = &values_[x]->buffer;
  const Buffer* dst = &values_[out]->buffer;
  const std::int64_t item = element_bytes(info.dtype);
  const std::int64_t bytes = padded_width(info.width) * item;
  const auto run = [src, dst, item, bytes](const Task& task) {
    for (std::int64_t i = share_begin(task); i < share_end(task); ++i) {
      const std::int64_t from = task.step->logit_rows[i];
      std::memcpy(static_cast<char*>(dst->data) + i * dst->ld * item,
                  static_cast<const char*>(src->data) + from * src->ld * item,
                  static_cast<std::size_t>(bytes));
    }
  };
  add_op("select_rows", Rows::kLogits, out, run, false);
  return out;
}

int Program::rms_norm(int x, std::shared_ptr<PackedVector> weight, int residual, float eps,
                      float offset) {
  const ValueInfo info = read_residual(x);
  require(weight->size() == info.width, "the norm weight's size is not the value's width");
  const bool adds = residual >= 0;
  if (adds) read_residual(residual, info, info.width);
  const int out = adds ? add_residual(info.rows, info.width) : add_act(info.rows, info.width);
  const NormArgs args{&values_[x]->buffer,
                      weight->data(),
                      adds ? &values_[residual]->buffer : nullptr,
                      &values_[out]->buffer,
                      static_cast<int>(info.width),
                      eps,
                      offset};
  const auto kernel = adds ? kernels_->rms_norm_add : kernels_->rms_norm[index(act_)];
  keep(weight);
  if (adds && x != residual) in_place_.emplace_back(residual, out);
  add_op(adds ? "rms_norm_add" : "rms_norm", info.rows, out,
         [=](const Task& task) { kernel(args, task); });
  return out;
}

// What a linear op multiplies: x, or for a quantized weight its int8 form, made once per value and
// kind of group.
int Program::operand(int x, const PackedLinear& weight, bool gated) {
  require(weight.gated() == gated,
          gated ? "gated_linear needs a gated weight" : "only gated_linear takes a gated weight");
  const LinearWeight& w = weight.weight();
  if (w.format == WeightFormat::kF32 || w.format == WeightFormat::kBf16) {
    const DType dtype = w.format == WeightFormat::kF32 ? DType::kF32 : DType::kBf16;
    require(dtype == act_, "the weight is of another dtype than activations");
    read_act(x, w.k);
    return x;
  }
  const WeightTraits& traits = traits_of(w.format);
  const auto [known, is_new] = quantized_.try_emplace({x, traits.group, traits.zero_point}, -1);
  if (is_new) {
    const ValueInfo info = read_act(x, w.k);
    const std::int64_t groups = w.k_padded / traits.group;
    known->second = add_value({info.rows, w.k_padded / 4 + 2 * groups, DType::kF32, Format::kAct});
    const QuantizeArgs args{&values_[x]->buffer,
                            &values_[known->second]->buffer,
                            w.k,
                            w.k_padded,
                            traits.group,
                            traits.zero_point,
                            traits.has_min};
    const auto kernel = kernels_->quantize[index(act_)];
    need_scratch(w.k_padded * static_cast<std::int64_t>(sizeof(float)));
    add_op("quantize", info.rows, known->second, [=](const Task& task) { kernel(args, task); });
  }
  read(known->second).operand = true;
  return known->second;
}

int Program::linear(int x, std::shared_ptr<PackedLinear> weight, int residual) {
  const LinearWeight& w = weight->weight();
  const int rows = operand(x, *weight, false);
  const ValueInfo info = values_[x]->info;
  const bool adds = residual >= 0;
  if (adds) read_residual(residual, info, w.n);
  const int out = add_residual(info.rows, w.n);
  const LinearArgs args{&values_[rows]->buffer, &w, adds ? &values_[residual]->buffer : nullptr,
                        &values_[out]->buffer};
  const auto kernel = kernels_->linear[index(w.format)];
  keep(weight);
  need_scratch(kernels_->gemm_scratch(1));
  if (adds && x != residual) in_place_.emplace_back(residual, out);
  add_op(adds ? "linear_add" : "linear", info.rows, out,
         [=](const Task& task) { kernel(args, task); });
  return out;
}

int Program::gated_linear(int x, std::shared_ptr<PackedLinear> weight, Activation activation) {
  const LinearWeight& w = weight->weight();
  const int rows = operand(x, *weight, true);
  const ValueInfo info = values_[x]->info;
  const int out = add_act(info.rows, w.n / 2);
  const GatedArgs args{&values_[rows]->buffer, &w, &values_[out]->buffer, activation};
  const auto kernel = kernels_->gated_linear[index(w.format)][index(act_)];
  keep(weight);
  need_scratch(kernels_->gemm_scratch(1));
  add_op("gated_linear", info.rows, out, [=](const Task& task) { kernel(args, task); });
  return out;
}

void Program::use_kv(const KvLayer& kv, const HeadShape& heads) {
  require(
      heads.num_heads > 0 && heads.num_kv_heads > 0 && heads.num_heads % heads.num_kv_heads == 0,
      "num_heads must be a multiple of num_kv_heads");
  require(heads.head_dim > 0 && heads.head_dim % 2 == 0 && heads.head_dim <= kMaxHeadDim,
          "head_dim must be even and at most 512");
  require(kv.num_kv_heads == heads.num_kv_heads && kv.head_dim == heads.head_dim,
          "the KV cache layer has other heads than the op");
  require(!cache_ || cache_ == kv.cache, "a program can use one KV cache only");
  cache_ = kv.cache;
  rules_.num_blocks = cache_->num_blocks();
}

GroupUse& Program::group_use(std::int64_t group) {
  require(group >= 0 && group < 1024, "KV group out of range");
  if (static_cast<std::int64_t>(rules_.groups.size()) <= group) rules_.groups.resize(group + 1);
  return rules_.groups[group];
}

static KvView kv_view(const KvLayer& kv, DType dtype) {
  const std::int64_t head = 2 * kBlockSize * kv.head_dim * element_bytes(dtype);
  require(kv.num_kv_heads * head <= kv.cache->page_bytes(), "KV pages are too small for the heads");
  require(kv.tensor >= 0 && kv.tensor < kv.cache->num_tensors(), "KV tensor out of range");
  return {kv.cache->tensor(kv.tensor), kv.cache->page_bytes(), head, static_cast<int>(kv.group)};
}

int Program::qkv_rope_store(int x, std::shared_ptr<PackedLinear> weight, const KvLayer& kv,
                            const HeadShape& heads, std::shared_ptr<RopeTable> rope,
                            const HeadNorm& norm) {
  use_kv(kv, heads);
  const LinearWeight& w = weight->weight();
  require(w.n == (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim,
          "the weight's rows are not (num_heads + 2 num_kv_heads) * head_dim");
  if (rope) {
    require(rope->view().rotary_dim <= heads.head_dim, "rotary_dim is larger than head_dim");
    require(rope->positions() >= rules_.limits.max_position, "the rope table is too short");
  }
  require(!norm.q == !norm.k, "head norms come in pairs");
  if (norm.q) {
    require(norm.q->size() == heads.head_dim && norm.k->size() == heads.head_dim,
            "head norm weights must have head_dim elements");
  }
  group_use(kv.group).stores = true;
  const int input = operand(x, *weight, false);
  const Rows rows = values_[x]->info.rows;
  require(rows == Rows::kTokens, "qkv_rope_store reads a value with rows TOKENS");
  const std::int64_t raw_rows =
      std::min(rules_.limits.max_tokens, kRowsPerThread * pool_->num_threads());
  const int raw = add_value({rows, w.n, DType::kF32, Format::kResidual}, raw_rows);
  const int out = add_act(rows, heads.num_heads * heads.head_dim);
  const QkvArgs args{&values_[input]->buffer,
                     &w,
                     &values_[raw]->buffer,
                     &values_[out]->buffer,
                     kv_view(kv, act_),
                     heads,
                     rope ? rope->view() : RopeView{},
                     HeadNormView{norm.q ? norm.q->data() : nullptr,
                                  norm.k ? norm.k->data() : nullptr, norm.eps, norm.offset}};
  const auto project = kernels_->qkv_project[index(w.format)][index(act_)];
  const auto finish = kernels_->qkv_finish[index(act_)];
  keep(weight);
  keep(kv.cache);
  keep(rope);
  keep(norm.q);
  keep(norm.k);
  need_scratch(
      kernels_->gemm_scratch(heads.head_dim / std::gcd(heads.head_dim, static_cast<int>(kPanel))));
  values_[out]->first = static_cast<int>(ops_.size());
  add_op("qkv_project", rows, raw, [=](const Task& task) { project(args, task); });
  read(raw);
  values_[out]->last = static_cast<int>(ops_.size());
  add_op("qkv_finish", rows, -1, [=](const Task& task) { finish(args, task); }, true, true);
  return out;
}

int Program::attention(int q, const KvLayer& kv, const HeadShape& heads, float scale, int window,
                       float soft_cap, std::shared_ptr<PackedVector> sinks) {
  use_kv(kv, heads);
  const ValueInfo info = read_act(q, heads.num_heads * heads.head_dim);
  require(info.rows == Rows::kTokens, "attention reads a value with rows TOKENS");
  require(scale > 0.0f, "the attention scale must be positive");
  require(window >= 0 && soft_cap >= 0.0f, "window and soft_cap must not be negative");
  require(!sinks || sinks->size() == heads.num_heads, "sinks must have num_heads elements");
  GroupUse& use = group_use(kv.group);
  use.window = use.attends && (use.window == 0 || window == 0) ? 0 : std::max(use.window, window);
  use.attends = true;
  const int out = add_act(info.rows, info.width);
  const std::int64_t chunks = rules_.limits.max_position / kChunk + 1;
  const std::int64_t partial_rows = pool_->num_threads() > 1 ? 2 * chunks * heads.num_heads : 0;
  partial_rows_ = std::max(partial_rows_, partial_rows);
  partial_width_ = std::max<std::int64_t>(partial_width_, (heads.head_dim + 15) / 16 * 16);
  const AttentionArgs args{&values_[q]->buffer,
                           &values_[out]->buffer,
                           kv_view(kv, act_),
                           heads,
                           scale,
                           soft_cap,
                           window,
                           sinks ? sinks->data() : nullptr,
                           &partials_,
                           partial_rows};
  const auto kernel = kernels_->attention[index(act_)];
  const auto merge = kernels_->attention_merge[index(act_)];
  keep(kv.cache);
  keep(sinks);
  need_scratch(kernels_->attention_scratch(heads));
  values_[out]->first = static_cast<int>(ops_.size());
  add_op("attention", info.rows, -1, [=](const Task& task) { kernel(args, task); }, false);
  read(q);
  read(out);
  add_op("attention_merge", info.rows, -1, [=](const Task& task) { merge(args, task); }, false);
  return out;
}

int Program::logits(int x, std::shared_ptr<PackedLinear> weight, float scale, float soft_cap) {
  require(soft_cap >= 0.0f, "soft_cap must not be negative");
  const LinearWeight& w = weight->weight();
  const int input = operand(x, *weight, false);
  const Rows rows = values_[x]->info.rows;
  require(rows == Rows::kLogits, "logits read a value with rows LOGITS");
  const int out = add_residual(rows, w.n);
  const LogitsArgs args{&values_[input]->buffer, &w, &values_[out]->buffer, scale, soft_cap};
  const auto kernel = kernels_->logits[index(w.format)];
  keep(weight);
  need_scratch(kernels_->gemm_scratch(1));
  add_op("logits", rows, out, [=](const Task& task) { kernel(args, task); });
  return out;
}

}  // namespace octavo
