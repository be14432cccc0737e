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

// In float64, in one order.
OCTAVO_INLINE double block_sum(const float* block) {
  double sum[4] = {0, 0, 0, 0};
  for (int j = 0; j < kSumBlock; j += 4) {
    for (int i = 0; i < 4; ++i) sum[i] += static_cast<double>(block[j + i]);
  }
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

inline void row_exp(const float* x, std::int64_t n, float max, float inv_temperature,
                    float* weights, double* sums) {
  const F32 top = set1(max), inverse = set1(inv_temperature), zero = set1(0.0f);
  alignas(64) float block[kSumBlock];
  for (std::int64_t start = 0; start < n; start += kSumBlock) {
    const int count = static_cast<int>(n - start < kSumBlock ? n - start : kSumBlock);
    const float* src = x + start;
    if (count < kSumBlock) {
      for (int j = 0; j < kSumBlock; ++j) block[j] = j < count ? src[j] : -__builtin_inff();
      src = block;
    }
    for (int j = 0; j < kSumBlock; j += kLanes) {
      const F32 e = vexp(mul(sub(load(src + j), top), inverse));
      store(block + j, select_greater(e, zero, e, zero));
    }
    __builtin_memcpy(weights + start, block, count * sizeof(float));
    sums[start / kSumBlock] = block_sum(block);
  }
}

inline void row_keep(const float* x, std::int64_t n, float cut, std::int64_t cut_id, float* weights,
                     double* sums) {
  const F32 limit = set1(cut), zero = set1(0.0f);
  alignas(64) float block[kSumBlock];
  for (std::int64_t start = 0; start < n; start += kSumBlock) {
    const int count = static_cast<int>(n - start < kSumBlock ? n - start : kSumBlock);
    const bool before = start + kSumBlock <= cut_id + 1, after = start > cut_id;
    if (count < kSumBlock || !(before || after)) {  // around cut_id, and at the end
      for (int j = 0; j < kSumBlock; ++j) {
        const float v = j < count ? x[start + j] : -__builtin_inff();
        const bool kept = v > cut || (v == cut && start + j <= cut_id);
        block[j] = kept && j < count ? weights[start + j] : 0.0f;
      }
    } else {
      for (int j = 0; j < kSumBlock; j += kLanes) {
        const F32 v = load(x + start + j), w = load(weights + start + j);
        store(block + j,
              before ? select_greater(limit, v, zero, w) : select_greater(v, limit, w, zero));
      }
    }
    __builtin_memcpy(weights + start, block, count * sizeof(float));
    sums[start / kSumBlock] = block_sum(block);
  }
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

inline std::int64_t row_collect(const float* x, std::int64_t n, float threshold,
                                std::int32_t* ids) {
  const F32 limit = set1(threshold);
  std::int64_t count = 0, i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (unsigned mask = mask_greater_equal(load(x + i), limit); mask; mask &= mask - 1) {
      ids[count++] = static_cast<std::int32_t>(i) + __builtin_ctz(mask);
    }
  }
  for (; i < n; ++i) {
    if (x[i] >= threshold) ids[count++] = static_cast<std::int32_t>(i);
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
