// Puts this unit's kernels into the table.
#pragma once

#include "simd/elem_f32.h"
//
#include "simd/math.inl.h"
//
#include "kernels/attention.inl.h"
#include "kernels/gemm_float.inl.h"
#include "kernels/linear.inl.h"
#include "kernels/logits.inl.h"
#include "kernels/qkv.inl.h"
#include "kernels/quantize.inl.h"
#include "kernels/rowwise.inl.h"
#include "kernels/sampling.inl.h"

namespace octavo {
namespace {

template <class G, class E>
void overlay_linear(KernelTable& table, WeightFormat format) {
  const int f = static_cast<int>(format), d = static_cast<int>(E::kDType);
  table.linear[f] = linear<G>;
  table.logits[f] = logits<G>;
  table.argmax[f] = argmax<G>;
  table.gated_linear[f][d] = gated_linear<G, E>;
  table.qkv_project[f][d] = qkv_project<G, E>;
}

template <class E>
void overlay_dtype(KernelTable& table) {
  constexpr int d = static_cast<int>(E::kDType);
  constexpr WeightFormat kFormat =
      E::kDType == DType::kF32 ? WeightFormat::kF32 : WeightFormat::kBf16;
  overlay_linear<FloatGemm<E>, E>(table, kFormat);
  table.embedding_panels[static_cast<int>(kFormat)] = embedding_panels<E>;
  table.embedding_rows[d] = embedding_rows<E>;
  table.qkv_finish[d] = qkv_finish<E>;
  table.attention[d] = attention<E>;
  table.attention_merge[d] = attention_merge<E>;
  table.rms_norm[d] = rms_norm<E>;
  table.layer_norm[d] = layer_norm<E>;
  table.quantize[d] = quantize<E>;
}

template <class G>
void overlay_format(KernelTable& table, WeightFormat format) {
  overlay_linear<G, ElemF32>(table, format);
  overlay_linear<G, ElemBf16Widened>(table, format);
}

// D makes the products of bytes.
template <class D>
void overlay_quantized(KernelTable& table) {
  using F = WeightFormat;
  overlay_format<QuantizedGemm<D, F::kInt8>>(table, F::kInt8);
  overlay_format<QuantizedGemm<D, F::kInt8G32>>(table, F::kInt8G32);
  overlay_format<QuantizedGemm<D, F::kInt8G32Min>>(table, F::kInt8G32Min);
  overlay_format<QuantizedGemm<D, F::kInt8G16>>(table, F::kInt8G16);
  overlay_format<QuantizedGemm<D, F::kInt8G16Min>>(table, F::kInt8G16Min);
  overlay_format<QuantizedGemm<D, F::kInt4G32>>(table, F::kInt4G32);
  overlay_format<QuantizedGemm<D, F::kInt4G32Min>>(table, F::kInt4G32Min);
  overlay_format<QuantizedGemm<D, F::kInt4G32MinF32>>(table, F::kInt4G32MinF32);
}

template <WeightFormat kFormat>
void overlay_embedding(KernelTable& table) {
  table.embedding_panels[static_cast<int>(kFormat)] = embedding_quantized<kFormat>;
}

// Plain C++, for the lowest tier only.
inline void overlay_quantized_embedding(KernelTable& table) {
  using F = WeightFormat;
  overlay_embedding<F::kInt8>(table);
  overlay_embedding<F::kInt8G32>(table);
  overlay_embedding<F::kInt8G32Min>(table);
  overlay_embedding<F::kInt8G16>(table);
  overlay_embedding<F::kInt8G16Min>(table);
  overlay_embedding<F::kInt4G32>(table);
  overlay_embedding<F::kInt4G32Min>(table);
  overlay_embedding<F::kInt4G32MinF32>(table);
}

inline std::int64_t gemm_scratch(int panels_per_group) {
  return gemm_tile_floats(panels_per_group) * static_cast<std::int64_t>(sizeof(float)) +
         kUnpackedBytes;
}

inline void overlay_float32(KernelTable& table) {
  overlay_dtype<ElemF32>(table);
  table.rms_norm_add = rms_norm_add;
  table.argmax_merge = argmax_merge;
  table.attention_is_split = attention_is_split;
  table.gemm_scratch = gemm_scratch;
  table.attention_scratch = attention_scratch;
  table.row_max = row_max;
  table.row_weights = row_weights;
  table.row_sum_exp = row_sum_exp;
  table.row_split = row_split;
  table.row_draw = row_draw;
  table.row_count_greater = row_count_greater;
  table.row_collect = row_collect;
  table.row_allow = row_allow;
}

}  // namespace
}  // namespace octavo
