// Sampling over rows of logits; semantics in octavo.kernels.sampling_ops.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "api/kernel_table.h"
#include "runtime/row_sampler.h"
#include "runtime/thread_pool.h"

namespace octavo {

struct LogitsView {
  float* data;
  std::int64_t rows, vocab, ld;
};

struct SamplingRows {
  const float* temperature;
  const std::int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const std::uint64_t* seed;
  const std::int32_t* sample_index;
  const std::int32_t* position;

  RowFilters filters(std::int64_t r) const {
    return {temperature[r], top_k[r], top_p[r], min_p[r]};
  }
};

// Uniform in [0, 1) with 53 bits: Philox4x32-10 (Salmon et al. 2011), key = seed, counter =
// (position, sample index, purpose, 0).
double philox_uniform(std::uint64_t seed, std::uint32_t position, std::uint32_t sample_index,
                      std::uint32_t purpose);

class Sampler {
 public:
  Sampler(std::shared_ptr<ThreadPool> pool, std::shared_ptr<const KernelTable> kernels);
  ~Sampler();

  // Token ids [rows].
  void sample(const LogitsView& logits, const SamplingRows& rows, std::int32_t* token_ids);

  // n different rows; entry i of `sampling` is about rows[i].
  void process(const LogitsView& logits, const std::int32_t* rows, const SamplingRows& sampling,
               std::int64_t n);

  // ids and values [n, 1 + k], ranks [n]. Values are logits where not `normalized`.
  void logprobs(const LogitsView& logits, const std::int32_t* rows, const std::int32_t* token_ids,
                std::int64_t n, std::int64_t k, bool normalized, std::int32_t* ids, float* values,
                std::int32_t* ranks);

 private:
  template <class Job>
  void for_each_row(std::int64_t vocab, std::int64_t n, Job job);

  std::shared_ptr<ThreadPool> pool_;
  std::shared_ptr<const KernelTable> kernels_;
  std::mutex mutex_;
  std::int64_t vocab_ = 0;
  std::vector<RowSampler> samplers_;  // one per thread
};

}  // namespace octavo
