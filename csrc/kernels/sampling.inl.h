// Passes over one row of logits.
#pragma once

#include "kernels/split.inl.h"

namespace octavo {
namespace {

inline float row_max(const float* x, std::int64_t n, float* maxima) {
  float max = -__builtin_inff();
  for (std::int64_t start = 0; start < n; start += kMaxBlock) {
    F32 top = set1(-__builtin_inff());
    std::int64_t i = start;
    const std::int64_t end = start + kMaxBlock < n ? start + kMaxBlock : n;
    for (; i + kLanes <= end; i += kLanes) top = vmax(load(x + i), top);  // NaN loses to top
    float block = reduce_max(top);
    for (; i < end; ++i) block = x[i] > block ? x[i] : block;
    maxima[start / kMaxBlock] = block;
    max = block > max ? block : max;
  }
  return max;
}

// Ids start … start + kRowBlock - 1 of a row; behind its end NaN, which is neither large nor small.
OCTAVO_INLINE const float* block_of(const float* x, std::int64_t start, std::int64_t n,
                                    float* padded) {
  if (n - start >= kRowBlock) return x + start;
  for (int j = 0; j < kRowBlock; ++j) padded[j] = j < n - start ? x[start + j] : __builtin_nanf("");
  return padded;
}

// Sums in float64 over kSumLanes lanes on every tier: element i goes to lane i % kSumLanes.
constexpr int kSumLanes = 16;
constexpr int kSumParts = kSumLanes / kLanes;
struct RowSums {
  LaneSums parts[kSumParts];
  OCTAVO_INLINE RowSums() {
    for (LaneSums& part : parts) part = zero_sums();
  }
  // value(j): elements j … j + kLanes - 1 of a block.
  template <class Value>
  OCTAVO_INLINE void add_block(Value value) {
    for (int j = 0; j < kRowBlock; j += kSumLanes) {
      OCTAVO_UNROLL
      for (int part = 0; part < kSumParts; ++part)
        accumulate(parts[part], value(j + part * kLanes));
    }
  }
  OCTAVO_INLINE double total() const {
    double lanes[kSumLanes];
    for (int part = 0; part < kSumParts; ++part) store(lanes + part * kLanes, parts[part]);
    for (int half = kSumLanes / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    return lanes[0];
  }
};

// e^x for x <= 0, and e^least where x is less or NaN. Cody and Waite's reduction, then 1 + r + r^2
// * (minimax of degree 3); relative error 2e-7. Nothing fused: the same bits on every tier.
OCTAVO_INLINE F32 exp_of_negative(F32 x, F32 least) {
  const F32 clamped = vmax(x, least);
  const F32 n = round_even(mul(clamped, set1(1.442695041f)));
  F32 r = sub(clamped, mul(n, set1(0.693359375f)));
  r = add(r, mul(n, set1(2.12194440e-4f)));
  F32 p = set1(8.312524296e-3f);
  p = add(mul(p, r), set1(4.189011455e-2f));
  p = add(mul(p, r), set1(1.666711420e-1f));
  p = add(mul(p, r), set1(4.999923110e-1f));
  p = add(mul(p, r), set1(1.0f));
  p = add(mul(p, r), set1(1.0f));
  return mul(p, pow2(n));
}

inline double row_weights(const float* x, std::int64_t n, float max, float inv_temperature,
                          float* weights) {
  // From 2^23 units on, the last bit of a float is worth a unit or more, so that adding and taking
  // away as many rounds to a multiple of it. e^-25 becomes 0.
  const F32 top = set1(max), inverse = set1(inv_temperature), least = set1(-25.0f);
  const F32 magic = set1(static_cast<float>(0x1p23 * kWeightUnit));
  RowSums sums;
  alignas(64) float padded[kRowBlock];
  for (std::int64_t start = 0; start < n; start += kRowBlock) {
    const float* src = block_of(x, start, n, padded);
    sums.add_block([&](int j) {
      const F32 e = exp_of_negative(mul(sub(load(src + j), top), inverse), least);
      const F32 weight = sub(add(e, magic), magic);
      store(weights + start + j, weight);
      return weight;
    });
  }
  return sums.total();
}

inline double row_sum_exp(const float* x, std::int64_t n, float max) {
  const F32 top = set1(max), least = set1(-87.0f);
  RowSums sums;
  alignas(64) float padded[kRowBlock];
  for (std::int64_t start = 0; start < n; start += kRowBlock) {
    const float* src = block_of(x, start, n, padded);
    sums.add_block([&](int j) { return exp_of_negative(sub(load(src + j), top), least); });
  }
  return sums.total();
}

inline double row_split(const float* x, const float* weights, std::int64_t n, float low, float high,
                        std::int32_t* ids, float* values, std::int64_t* num_ids) {
  const F32 least = set1(low), most = set1(high), zero = set1(0.0f);
  RowSums sums;
  std::int64_t count = 0;
  alignas(64) float padded[kRowBlock];
  for (std::int64_t start = 0; start < n; start += kRowBlock) {
    const float* src = block_of(x, start, n, padded);
    sums.add_block([&](int j) {
      const F32 v = load(src + j);
      const unsigned mask = mask_greater_equal(v, least) & mask_greater_equal(most, v);
      if (mask) {
        count += store_set_lanes(src + j, static_cast<int>(start) + j, mask, ids + count,
                                 values + count);
      }
      return select_greater(v, most, load(weights + start + j), zero);
    });
  }
  *num_ids = count;
  return sums.total();
}

// weights[i] where x[i] > cut, or x[i] == cut and i <= cut_id; 0 elsewhere.
OCTAVO_INLINE void kept_weights(const float* x, const float* weights, std::int64_t start, float cut,
                                std::int64_t cut_id, float* kept) {
  const F32 limit = set1(cut), zero = set1(0.0f);
  if (start + kRowBlock <= cut_id + 1) {
    for (int j = 0; j < kRowBlock; j += kLanes) {
      store(kept + j, select_greater(limit, load(x + j), zero, load(weights + start + j)));
    }
  } else if (start > cut_id) {
    for (int j = 0; j < kRowBlock; j += kLanes) {
      store(kept + j, select_greater(load(x + j), limit, load(weights + start + j), zero));
    }
  } else {
    for (int j = 0; j < kRowBlock; ++j) {
      const bool is_kept = x[j] > cut || (x[j] == cut && start + j <= cut_id);
      kept[j] = is_kept ? weights[start + j] : 0.0f;
    }
  }
}

inline std::int64_t row_draw(const float* x, const float* weights, std::int64_t n, float cut,
                             std::int64_t cut_id, double target) {
  alignas(64) float padded[kRowBlock], kept[kRowBlock];
  double running = 0.0, before = 0.0;  // through and before `block`, the last one of some weight
  std::int64_t block = 0;
  for (std::int64_t start = 0; start < n && running <= target; start += kRowBlock) {
    kept_weights(block_of(x, start, n, padded), weights, start, cut, cut_id, kept);
    RowSums sums;
    sums.add_block([&](int j) { return load(kept + j); });
    const double sum = sums.total();
    if (sum == 0.0) continue;
    block = start;
    before = running;
    running += sum;
  }
  kept_weights(block_of(x, block, n, padded), weights, block, cut, cut_id, kept);
  std::int64_t drawn = block;
  for (int j = 0; j < kRowBlock && before <= target; ++j) {
    if (kept[j] > 0.0f) drawn = block + j;
    before += static_cast<double>(kept[j]);
  }
  return drawn;
}

inline std::int64_t row_count_greater(const float* x, std::int64_t n, float threshold) {
  const F32 limit = set1(threshold);
  std::int64_t count = 0, i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    count += __builtin_popcount(mask_greater(load(x + i), limit));
  }
  for (; i < n; ++i) count += x[i] > threshold;
  return count;
}

inline std::int64_t row_collect(const float* x, std::int64_t n, float threshold, std::int32_t* ids,
                                float* values) {
  const F32 limit = set1(threshold);
  std::int64_t count = 0;
  alignas(64) float padded[kRowBlock];
  for (std::int64_t start = 0; start < n; start += kRowBlock) {
    const float* src = block_of(x, start, n, padded);
    for (int j = 0; j < kRowBlock; j += kLanes) {
      const unsigned mask = mask_greater_equal(load(src + j), limit);
      if (mask) {
        count += store_set_lanes(src + j, static_cast<int>(start) + j, mask, ids + count,
                                 values + count);
      }
    }
  }
  return count;
}

inline void row_allow(float* x, std::int64_t n, const std::int32_t* bits) {
  constexpr int kWord = 32;
  for (std::int64_t start = 0; start < n; start += kWord) {
    const std::uint32_t word = static_cast<std::uint32_t>(bits[start / kWord]);
    if (word == ~0u) continue;
    float* row = x + start;
    if (n - start >= kWord) {
      for (int j = 0; j < kWord; ++j) row[j] = word >> j & 1u ? row[j] : -__builtin_inff();
    } else {
      for (int j = 0; j < n - start; ++j) row[j] = word >> j & 1u ? row[j] : -__builtin_inff();
    }
  }
}

}  // namespace
}  // namespace octavo
