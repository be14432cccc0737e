// Recording, continued: the ops that store into the KV cache and read from it.
#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/error.h"
#include "runtime/program.h"

namespace octavo {
namespace {

KvView kv_view(const KvLayer& kv, DType dtype) {
  const std::int64_t head = 2 * kBlockSize * kv.head_dim * element_bytes(dtype);
  require(kv.num_kv_heads * head <= kv.cache->page_bytes(), "KV pages are too small for the heads");
  require(kv.tensor >= 0 && kv.tensor < kv.cache->num_tensors(), "KV tensor out of range");
  KvView view = kv.cache->tensor(kv.tensor);
  view.head_bytes = head;
  view.group = static_cast<int>(kv.group);
  return view;
}

}  // namespace

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
  const auto project = kernels_->qkv_project[index(w.format)][index(act_)];
  QkvArgs args{};
  args.weight = &w;
  args.raw = &values_[raw]->buffer;
  args.q = &values_[out]->buffer;
  args.kv = kv_view(kv, act_);
  args.heads = heads;
  args.rope = rope ? rope->view() : RopeView{};
  const auto args_of = [args, norm, from = values_[input].get()](const Task& task) {
    QkvArgs own = args;
    own.x = buffer_of(*from, task);
    if (norm.q) own.norm = {norm.q->data(), norm.k->data(), norm.eps, norm.offset};
    return own;
  };
  keep(kv.cache);
  keep(rope);
  keep_weight(std::move(weight));
  if (norm.q) keep_weight(norm.q);
  if (norm.k) keep_weight(norm.k);
  need_scratch(
      kernels_->gemm_scratch(heads.head_dim / std::gcd(heads.head_dim, static_cast<int>(kPanel))));
  // Split by rows the first does all; otherwise it leaves raw rows to the second.
  Op& first = add_op("qkv_project", rows, {raw, out},
                     [=](const Task& task) { project(args_of(task), task); });
  first.has_effects = true;
  read(raw);
  Op& second = add_op("qkv_finish", rows, {out},
                      [args_of, kernel = kernels_->qkv_finish[index(act_)]](const Task& task) {
                        kernel(args_of(task), task);
                      });
  second.has_effects = true;
  second.skip_by_rows = true;
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
                           nullptr,
                           &partials_,
                           partial_rows};
  const auto args_of = [args, sinks] {
    AttentionArgs own = args;
    own.sinks = sinks ? sinks->data() : nullptr;
    return own;
  };
  keep(kv.cache);
  if (sinks) keep_weight(std::move(sinks));
  need_scratch(kernels_->attention_scratch(heads));
  add_op("attention", info.rows, {out},
         [args_of, kernel = kernels_->attention[index(act_)]](const Task& task) {
           kernel(args_of(), task);
         })
      .row_local = false;
  read(q);
  Op& second = add_op("attention_merge", info.rows, {out},
                      [args_of, kernel = kernels_->attention_merge[index(act_)]](const Task& task) {
                        kernel(args_of(), task);
                      });
  second.row_local = false;
  second.is_needed = [args, is_split = kernels_->attention_is_split](const Task& task) {
    return is_split(args, task);
  };
  return out;
}

}  // namespace octavo
