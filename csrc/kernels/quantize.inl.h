// Activations to codes, with a scale per group of a row. The same codes on every ISA.
#pragma once

#include "kernels/gemm_quantized.inl.h"

namespace octavo {
namespace {

// Below, all codes are 0: 127 / max would overflow.
constexpr float kSmallestMax = 1e-30f;

// Whether all lanes are zero, and none NaN.
OCTAVO_INLINE bool is_zero(F32 v) {
  return (mask_greater_equal(v, set1(0.0f)) & mask_greater_equal(set1(0.0f), v)) ==
         (1u << kLanes) - 1;
}

OCTAVO_INLINE F32 absolute(F32 v) { return vmax(v, sub(set1(0.0f), v)); }

// Of a group of finite values: the quad (four from a multiple of four on) that has the largest
// magnitude, the first of equals, and the largest magnitude in the others.
struct Outlier {
  int quad;
  float rest;
};

template <int kVectors>
OCTAVO_INLINE Outlier find_outlier(const F32 (&magnitudes)[kVectors], float largest) {
  const F32 zero = set1(0.0f), top = set1(largest);
  F32 rest = zero;
  unsigned lanes = 0;
  OCTAVO_UNROLL for (int i = 0; i < kVectors; ++i) {
    const F32 quads = quad_max(magnitudes[i]);
    lanes |= mask_greater_equal(quads, top) << (i * kLanes);
    rest = vmax(select_greater(top, quads, quads, zero), rest);
  }
  const bool is_single = __builtin_popcount(lanes) == 4;
  return {__builtin_ctz(lanes) / 4, is_single ? reduce_max(rest) : largest};
}

// The parts of a row that are made of one group; see QuantizeArgs.
struct QuantizedGroup {
  float scale, sum;  // of codes
  std::int32_t quad;
  std::int8_t high[4];
};

// In a group that is not finite all codes are 0, as there are none for NaN, and the scale is NaN:
// so becomes every product with the row.
template <int kGroup, bool kOutlier>
OCTAVO_INLINE QuantizedGroup quantize_group(const F32 (&x)[kGroup / kLanes], std::int8_t* codes) {
  constexpr int kVectors = kGroup / kLanes;
  const F32 zero = set1(0.0f);
  F32 magnitudes[kVectors], max = zero, poison = zero;
  OCTAVO_UNROLL for (int i = 0; i < kVectors; ++i) {
    magnitudes[i] = absolute(x[i]);
    max = vmax(magnitudes[i], max);
    poison = fma(x[i], zero, poison);  // NaN from NaN and infinities
  }
  const float largest = reduce_max(max);
  const bool is_finite = is_zero(poison);
  if (!is_finite || !(largest > kSmallestMax)) {
    OCTAVO_UNROLL for (int i = 0; i < kVectors; ++i) store_int8(codes + i * kLanes, zero);
    return {is_finite ? 0.0f : __builtin_nanf(""), 0.0f, 0, {}};
  }
  QuantizedGroup group{};
  float unit = largest;  // has the code 127
  if constexpr (kOutlier) {
    const Outlier outlier = find_outlier<kVectors>(magnitudes, largest);
    group.quad = outlier.quad;
    unit = outlier.rest > largest / 257.0f ? outlier.rest : largest / 257.0f;
  }
  const F32 inverse = set1(127.0f / unit);
  alignas(64) std::int8_t high[kGroup];
  F32 total = zero;
  OCTAVO_UNROLL for (int i = 0; i < kVectors; ++i) {
    const F32 code = round_even(mul(x[i], inverse));
    total = add(total, code);
    store_int8(codes + i * kLanes, code);
    if constexpr (kOutlier) {
      // floor((code + 128) / 256), as the nearest to (code + 0.5) / 256, which no two are.
      store_int8(high + i * kLanes, round_even(fma(code, set1(1.0f / 256), set1(0.5f / 256))));
    }
  }
  if constexpr (kOutlier) __builtin_memcpy(group.high, high + 4 * group.quad, 4);
  group.scale = unit / 127.0f;
  group.sum = reduce_add(total);
  return group;
}

// A group of a row, of which `left` columns are the row's. What lies behind them is undefined: 0.
template <class E, int kGroup>
OCTAVO_INLINE void load_group(const typename E::T* x, int left, F32 (&group)[kGroup / kLanes]) {
  if (left >= kGroup) {
    OCTAVO_UNROLL for (int i = 0; i < kGroup / kLanes; ++i) group[i] = E::widen(x + i * kLanes);
    return;
  }
  alignas(64) typename E::T padded[kGroup] = {};
  if (left > 0) __builtin_memcpy(padded, x, left * sizeof(typename E::T));
  OCTAVO_UNROLL for (int i = 0; i < kGroup / kLanes; ++i) group[i] = E::widen(padded + i * kLanes);
}

template <class E, int kGroup, bool kOutlier>
void quantize_rows(const QuantizeArgs& args, const Task& task) {
  const int groups = args.k_padded / kGroup;
  int begin = 0, end = task.rows, first = 0, last = groups;
  if (args.by_columns) {
    split(groups, 1, task, &first, &last);
  } else {
    split_rows(task, &begin, &end);
  }
  for (int m = begin; m < end; ++m) {
    const typename E::T* x = row_of<typename E::T>(*args.x, m);
    auto* codes = static_cast<std::int8_t*>(args.out->data) + m * args.out->ld * 4;
    float* scales = reinterpret_cast<float*>(codes + args.k_padded);
    float *corrections = scales + groups, *high = corrections + groups, *quads = high + groups;
    for (int g = first; g < last; ++g) {
      F32 values[kGroup / kLanes];
      load_group<E, kGroup>(x + g * kGroup, args.k - g * kGroup, values);
      const QuantizedGroup group = quantize_group<kGroup, kOutlier>(values, codes + g * kGroup);
      scales[g] = group.scale;
      if (args.has_min) {
        corrections[g] = group.scale * group.sum;
      } else {
        const std::int32_t start = -args.zero_point * static_cast<std::int32_t>(group.sum);
        __builtin_memcpy(corrections + g, &start, 4);
      }
      if constexpr (kOutlier) {
        __builtin_memcpy(high + g, group.high, 4);
        __builtin_memcpy(quads + g, &group.quad, 4);
      }
    }
  }
}

template <class E>
void quantize(const QuantizeArgs& args, const Task& task) {
  switch (args.group) {
    case 16:
      return quantize_rows<E, 16, true>(args, task);
    case 32:
      return quantize_rows<E, 32, true>(args, task);
    default:
      return quantize_rows<E, 64, false>(args, task);
  }
}

// Rows of a table in panels of kFormat: exactly the format's values, scale * (code - zero) + min.
template <WeightFormat kFormat>
void embedding_quantized(const EmbeddingArgs& args, const Task& task) {
  constexpr WeightTraits kTraits = kWeightTraits[static_cast<int>(kFormat)];
  constexpr int kGroup = kTraits.group;
  constexpr int kCodeBytes = kGroup * kPanel * kTraits.bits / 8;
  constexpr int kScales = kPanel * kTraits.scale_bytes;
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
    for (int k = 0; k < args.width; k += kGroup, block += kBlockBytes) {
      const auto* codes = reinterpret_cast<const std::uint8_t*>(block) + column * 4;
      const char* scales = block + kCodeBytes;
      const float scale = kScales == 0 ? w.scales[token] : scale_at(scales, column);
      const float min = kTraits.has_min ? scale_at(scales + kScales, column) : 0.0f;
      constexpr int kBytes = kGroup * kTraits.bits / 8;  // of one column
      for (int i = 0; i < kGroup && k + i < args.width; ++i) {
        const int byte = codes[i % kBytes / 4 * 4 * kPanel + i % 4];
        const int code = kTraits.bits == 8 ? byte : i < kBytes ? byte & 15 : byte >> 4;
        const float value = scale * static_cast<float>(code - kTraits.zero_point);
        out[k + i] = (kTraits.has_min ? value + min : value) * args.scale;
      }
    }
    for (int k = args.width; k < round_up(args.width, kColumnPad); ++k) out[k] = 0.0f;
  }
}

}  // namespace
}  // namespace octavo
