// Passes over one row of logits.
#pragma once

#include "kernels/split.inl.h"

namespace octavo {
namespace {

inline float row_max(const float* x, std::int64_t n) {
  F32 top = set1(-__builtin_inff());
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) top = vmax(load(x + i), top);  // NaN loses to top
  float max = reduce_max(top);
  for (; i < n; ++i) max = x[i] > max ? x[i] : max;
  return max;
}

inline void row_exp(const float* x, std::int64_t n, float max, float inv_temperature,
                    float* weights, double* sums) {
  const F32 top = set1(max), inverse = set1(inv_temperature), zero = set1(0.0f);
  alignas(64) float block[kSumBlock];
  for (std::int64_t start = 0; start < n; start += kSumBlock) {
    const int count = static_cast<int>(n - start < kSumBlock ? n - start : kSumBlock);
    for (int j = 0; j < kSumBlock; j += kLanes) {
      F32 v;
      if (j + kLanes <= count) {
        v = load(x + start + j);
      } else {
        for (int i = 0; i < kLanes; ++i) {
          block[j + i] = j + i < count ? x[start + j + i] : -__builtin_inff();
        }
        v = load(block + j);
      }
      const F32 e = vexp(mul(sub(v, top), inverse));
      store(block + j, select_greater(e, zero, e, zero));
    }
    __builtin_memcpy(weights + start, block, count * sizeof(float));
    double sum[4] = {0, 0, 0, 0};
    for (int j = 0; j < kSumBlock; j += 4) {
      for (int i = 0; i < 4; ++i) sum[i] += static_cast<double>(block[j + i]);
    }
    sums[start / kSumBlock] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
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

}  // namespace
}  // namespace octavo
