#include "runtime/sampler.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace octavo {

double philox_uniform(std::uint64_t seed, std::uint32_t position, std::uint32_t sample_index,
                      std::uint32_t purpose) {
  std::uint32_t c[4] = {position, sample_index, purpose, 0};
  std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * c[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * c[2];
    const std::uint32_t next[4] = {
        static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(a)};
    std::copy(next, next + 4, c);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  const std::uint64_t bits = std::uint64_t{c[0]} << 21 | c[1] >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

Sampler::Sampler(std::shared_ptr<ThreadPool> pool, std::shared_ptr<const KernelTable> kernels)
    : pool_(std::move(pool)), kernels_(std::move(kernels)) {}

Sampler::~Sampler() = default;

// Rows cost anything between an argmax and a draw: each thread takes the next one.
template <class Job>
void Sampler::for_each_row(std::int64_t vocab, std::int64_t n, Job job) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (vocab_ != vocab) {
    samplers_.assign(pool_->num_threads(), RowSampler(*kernels_, vocab));
    vocab_ = vocab;
  }
  std::atomic<std::int64_t> next{0};
  pool_->run([&](int thread) {
    for (std::int64_t i = next++; i < n; i = next++) job(samplers_[thread], i);
  });
}

void Sampler::sample(const LogitsView& logits, const SamplingRows& rows, std::int32_t* token_ids) {
  for_each_row(logits.vocab, logits.rows, [&](RowSampler& sampler, std::int64_t r) {
    const double u = philox_uniform(rows.seed[r], static_cast<std::uint32_t>(rows.position[r]),
                                    static_cast<std::uint32_t>(rows.sample_index[r]), 0);
    token_ids[r] = sampler.sample(logits.data + r * logits.ld, rows.filters(r), u);
  });
}

void Sampler::process(const LogitsView& logits, const std::int32_t* rows,
                      const SamplingRows& sampling, std::int64_t n) {
  for_each_row(logits.vocab, n, [&](RowSampler& sampler, std::int64_t i) {
    sampler.process(logits.data + rows[i] * logits.ld, sampling.filters(i));
  });
}

void Sampler::logprobs(const LogitsView& logits, const std::int32_t* rows,
                       const std::int32_t* token_ids, std::int64_t n, std::int64_t k,
                       bool normalized, std::int32_t* ids, float* values, std::int32_t* ranks) {
  for_each_row(logits.vocab, n, [&](RowSampler& sampler, std::int64_t i) {
    const std::int64_t at = i * (1 + k);
    sampler.logprobs(logits.data + rows[i] * logits.ld, token_ids[i], k, normalized, ids + at,
                     values + at, ranks + i);
  });
}

}  // namespace octavo
