// Activations to int8: one scale per row, or per group of a row. The same codes on every ISA.
#pragma once

#include "kernels/gemm_quantized.inl.h"

namespace octavo {
namespace {

// Below, all codes are 0: 127 / max would overflow.
constexpr float kSmallestMax = 1e-30f;

// The largest magnitude of x[count], NaN where anything is NaN or infinite. count % kLanes == 0.
OCTAVO_INLINE float finite_max(const float* x, int count) {
  F32 max = set1(0.0f), poison = set1(0.0f);
  for (int i = 0; i < count; i += kLanes) {
    const F32 v = load(x + i);
    max = vmax(vmax(v, sub(set1(0.0f), v)), max);
    poison = add(mul(v, set1(0.0f)), poison);
  }
  return reduce_max(max) + reduce_add(poison);
}

// codes = round(x * 127 / max), ties to even; returns the scale, max / 127, and the codes' sum
// (exact: less than 2^24).
OCTAVO_INLINE float quantize_group(const float* x, int count, std::int8_t* codes, float* sum) {
  const float max = finite_max(x, count);
  const bool usable = max > kSmallestMax && max < __builtin_inff();
  const F32 inverse = set1(usable ? 127.0f / max : 0.0f), zero = set1(0.0f);
  F32 total = zero;
  for (int i = 0; i < count; i += kLanes) {
    const F32 v = usable ? round_even(mul(load(x + i), inverse)) : zero;
    total = add(total, v);
    store_int8(codes + i, v);
  }
  *sum = reduce_add(total);
  return max < kSmallestMax ? 0.0f : max / 127.0f;
}

template <class E>
void quantize(const QuantizeArgs& args, const Task& task) {
  float* row = reinterpret_cast<float*>(task.scratch);
  const int group = args.group ? args.group : args.k_padded;
  const int groups = args.k_padded / group;
  int begin, end;
  split_rows(task, &begin, &end);
  for (int m = begin; m < end; ++m) {
    const typename E::T* x = row_of<typename E::T>(*args.x, m);
    for (int j = 0; j < args.k_padded; j += kLanes) store(row + j, E::widen(x + j));
    auto* codes = static_cast<std::int8_t*>(args.out->data) + m * args.out->ld * 4;
    float* scales = reinterpret_cast<float*>(codes + args.k_padded);
    float* corrections = scales + groups;
    for (int g = 0; g < groups; ++g) {
      float sum;
      scales[g] = quantize_group(row + g * group, group, codes + g * group, &sum);
      if (args.has_min) {
        corrections[g] = scales[g] * sum;
      } else {
        const std::int32_t start = -args.zero_point * static_cast<std::int32_t>(sum);
        __builtin_memcpy(corrections + g, &start, 4);
      }
    }
  }
}

// Rows of a table in panels of kFormat: exactly the format's values, scale * (code - zero) + min.
template <WeightFormat kFormat>
void embedding_quantized(const EmbeddingArgs& args, const Task& task) {
  constexpr WeightTraits kTraits = kWeightTraits[static_cast<int>(kFormat)];
  constexpr bool kRowScale = kTraits.group == 0;
  constexpr int kGroup = kRowScale ? kColumnPad : kTraits.group;
  constexpr int kCodeBytes = kGroup * kPanel * kTraits.bits / 8;
  constexpr int kScales = kRowScale ? 0 : kPanel * kTraits.scale_bytes;
  constexpr int kBlockBytes = kCodeBytes + kScales * (kTraits.has_min ? 2 : 1);
  const LinearWeight& w = *args.weight;
  const auto scale_at = [](const char* scales, int column) {
    if constexpr (kTraits.scale_bytes == 2) {
      return half_to_float(reinterpret_cast<const std::uint16_t*>(scales)[column]);
    } else {
      return reinterpret_cast<const float*>(scales)[column];
    }
  };
  int begin, end;
  split_rows(task, &begin, &end);
  for (int row = begin; row < end; ++row) {
    const std::int64_t token = task.step->token_ids[row];
    const int column = static_cast<int>(token % kPanel);
    const char* block = static_cast<const char*>(w.panels) + token / kPanel * w.panel_bytes;
    float* out = row_of<float>(*args.out, row);
    for (int k = 0; k < w.k_padded; k += kGroup, block += kBlockBytes) {
      const auto* codes = reinterpret_cast<const std::uint8_t*>(block) + column * 4;
      const char* scales = block + kCodeBytes;
      const float scale = kRowScale ? w.scales[token] : scale_at(scales, column);
      const float min = kTraits.has_min ? scale_at(scales + kScales, column) : 0.0f;
      constexpr int kBytes = kGroup * kTraits.bits / 8;  // of one column
      for (int i = 0; i < kGroup; ++i) {
        const int byte = codes[i % kBytes / 4 * 4 * kPanel + i % 4];
        const int code = kTraits.bits == 8 ? byte : i < kBytes ? byte & 15 : byte >> 4;
        const float value = scale * static_cast<float>(code - kTraits.zero_point);
        out[k + i] = (kTraits.has_min ? value + min : value) * args.scale;
      }
    }
    for (int k = args.width; k < w.k_padded; ++k) out[k] = 0.0f;
  }
}

}  // namespace
}  // namespace octavo
