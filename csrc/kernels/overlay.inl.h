// Puts this unit's kernels into the table.
#pragma once

#include "simd/elem_f32.h"
//
#include "simd/math.inl.h"
//
#include "kernels/attention.inl.h"
#include "kernels/linear.inl.h"
#include "kernels/logits.inl.h"
#include "kernels/qkv.inl.h"
#include "kernels/rowwise.inl.h"
#include "kernels/sampling.inl.h"

namespace octavo {
namespace {

template <class E>
void overlay_dtype(KernelTable& table) {
  constexpr int d = static_cast<int>(E::kDType);
  table.linear[d] = linear<E>;
  table.gated_linear[d] = gated_linear<E>;
  table.logits[d] = logits<E>;
  table.argmax[d] = argmax<E>;
  table.qkv_project[d] = qkv_project<E>;
  table.qkv_finish[d] = qkv_finish<E>;
  table.attention[d] = attention<E>;
  table.attention_merge[d] = attention_merge<E>;
  table.rms_norm[d] = rms_norm<E>;
  table.layer_norm[d] = layer_norm<E>;
  table.embedding[d] = embedding<E>;
}

inline std::int64_t gemm_scratch(int panels_per_group) {
  return gemm_tile_floats(panels_per_group) * static_cast<std::int64_t>(sizeof(float));
}

inline void overlay_float32(KernelTable& table) {
  overlay_dtype<ElemF32>(table);
  table.rms_norm_add = rms_norm_add;
  table.argmax_merge = argmax_merge;
  table.attention_is_split = attention_is_split;
  table.gemm_scratch = gemm_scratch;
  table.attention_scratch = attention_scratch;
  table.row_max = row_max;
  table.row_exp = row_exp;
  table.row_keep = row_keep;
  table.row_count_greater = row_count_greater;
  table.row_collect = row_collect;
  table.row_allow = row_allow;
}

}  // namespace
}  // namespace octavo
