// Activations to codes, with a scale per group of a row. The same codes on every ISA.
#pragma once

#include "kernels/gemm_quantized.inl.h"

namespace octavo {
namespace {

// Below, all codes are 0: 127 / max would overflow.
constexpr float kSmallestMax = 1e-30f;

OCTAVO_INLINE F32 absolute(F32 v) { return vmax(v, sub(set1(0.0f), v)); }

OCTAVO_INLINE float magnitude(const float* x, int count) {
  F32 max = set1(0.0f);
  for (int i = 0; i < count; i += kLanes) max = vmax(absolute(load(x + i)), max);
  return reduce_max(max);
}

// The quad (four from a multiple of four on) that has the largest magnitude of a group, the first
// of equals, and the largest magnitude in the others. Of finite values.
struct Outlier {
  int quad;
  float rest;
};

OCTAVO_INLINE Outlier find_outlier(const float* x, int count, float largest) {
  const F32 zero = set1(0.0f), top = set1(largest);
  F32 rest = zero;
  unsigned lanes = 0;
  for (int i = 0; i < count; i += kLanes) {
    const F32 quads = quad_max(absolute(load(x + i)));
    lanes |= mask_greater_equal(quads, top) << i;
    rest = vmax(select_greater(top, quads, quads, zero), rest);
  }
  const bool is_single = __builtin_popcount(lanes) == 4;
  return {__builtin_ctz(lanes) / 4, is_single ? reduce_max(rest) : largest};
}

// The high bytes of four codes within ±32639 whose low ones are of two's complement:
// floor((code + 128) / 256), as the nearest to (code + 0.5) / 256, which is never in the middle.
OCTAVO_INLINE void store_high_bytes(const float* x, F32 inverse, float* high) {
  alignas(16) std::int8_t bytes[kLanes];
  const F32 code = round_even(mul(load(x), inverse));
  store_int8(bytes, round_even(mul(add(code, set1(0.5f)), set1(1.0f / 256))));
  __builtin_memcpy(high, bytes, 4);
}

// The codes of a group as QuantizeArgs says, from x with kLanes more floats behind; returns the
// scale and the codes' sum. In a row that is not finite all codes are 0: there are none for NaN.
template <bool kOutlier>
OCTAVO_INLINE float quantize_group(const float* x, int count, bool is_finite, std::int8_t* codes,
                                   float* sum, float* high, std::int32_t* quad) {
  const float largest = magnitude(x, count);
  const bool usable = is_finite && largest > kSmallestMax;
  float unit = largest;  // has the code 127
  if constexpr (kOutlier) {
    *quad = 0;
    *high = 0.0f;
    if (usable) {
      const Outlier outlier = find_outlier(x, count, largest);
      *quad = outlier.quad;
      unit = outlier.rest > largest / 257.0f ? outlier.rest : largest / 257.0f;
      store_high_bytes(x + 4 * outlier.quad, set1(127.0f / unit), high);
    }
  }
  const F32 inverse = set1(usable ? 127.0f / unit : 0.0f), zero = set1(0.0f);
  F32 total = zero;
  for (int i = 0; i < count; i += kLanes) {
    const F32 v = usable ? round_even(mul(load(x + i), inverse)) : zero;
    total = add(total, v);
    store_int8(codes + i, v);
  }
  *sum = reduce_add(total);
  return largest > kSmallestMax ? unit / 127.0f : 0.0f;
}

// Widens a row and pads it with zeros to k_padded. Returns 0, or NaN where an element is NaN or
// infinite.
template <class E>
OCTAVO_INLINE float widen_row(const typename E::T* x, int k, int k_padded, float* row) {
  const F32 zero = set1(0.0f);
  F32 poison = zero;
  for (int j = 0; j < k_padded; j += kLanes) {
    F32 v = j < k ? E::widen(x + j) : zero;
    if (j < k && j + kLanes > k) {  // what lies behind a row's last column is undefined
      store(row + j, v);
      for (int i = k; i < j + kLanes; ++i) row[i] = 0.0f;
      v = load(row + j);
    }
    poison = fma(v, zero, poison);
    store(row + j, v);
  }
  return reduce_add(poison);
}

template <class E, bool kOutlier>
OCTAVO_INLINE void quantize_row(const QuantizeArgs& args, int m, float* row) {
  const int group = args.group, groups = args.k_padded / group;
  const float poison = widen_row<E>(row_of<typename E::T>(*args.x, m), args.k, args.k_padded, row);
  auto* codes = static_cast<std::int8_t*>(args.out->data) + m * args.out->ld * 4;
  float* scales = reinterpret_cast<float*>(codes + args.k_padded);
  float *corrections = scales + groups, *high = corrections + groups, *quads = high + groups;
  for (int g = 0; g < groups; ++g) {
    float sum;
    std::int32_t quad;
    const float scale = quantize_group<kOutlier>(row + g * group, group, poison == 0.0f,
                                                 codes + g * group, &sum, high + g, &quad);
    scales[g] = scale + poison;
    if (args.has_min) {
      corrections[g] = scales[g] * sum;
    } else {
      const std::int32_t start = -args.zero_point * static_cast<std::int32_t>(sum);
      __builtin_memcpy(corrections + g, &start, 4);
    }
    if constexpr (kOutlier) __builtin_memcpy(quads + g, &quad, 4);
  }
}

template <class E>
void quantize(const QuantizeArgs& args, const Task& task) {
  float* row = reinterpret_cast<float*>(task.scratch);
  int begin, end;
  split_rows(task, &begin, &end);
  for (int m = begin; m < end; ++m) {
    if (args.has_outlier) {
      quantize_row<E, true>(args, m, row);
    } else {
      quantize_row<E, false>(args, m, row);
    }
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
