// Edits of logits before a token is chosen; semantics in octavo.kernels.sampling_ops.
#pragma once

#include <cstdint>

#include "api/kernel_table.h"
#include "runtime/sampler.h"
#include "runtime/thread_pool.h"

namespace octavo {

// Row i has the tokens starts[i] … starts[i + 1] - 1.
struct PenaltyRows {
  const float* repetition;
  const float* frequency;
  const float* presence;
  const std::int32_t* starts;
  const std::int32_t* token_ids;
  const std::int32_t* counts;
};

// n pairs of row and token.
void mask(const LogitsView& logits, const std::int32_t* rows, const std::int32_t* token_ids,
          std::int64_t n);
void add_bias(const LogitsView& logits, const std::int32_t* rows, const std::int32_t* token_ids,
              const float* bias, std::int64_t n);

// n different rows, shared out among the threads.
void allow(ThreadPool& pool, const KernelTable& kernels, const LogitsView& logits,
           const std::int32_t* rows, const std::int32_t* bitmask, std::int64_t n);
void penalize(ThreadPool& pool, const LogitsView& logits, const std::int32_t* rows,
              const PenaltyRows& penalties, std::int64_t n);

}  // namespace octavo
