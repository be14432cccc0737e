#include "runtime/logit_ops.h"

#include <limits>

namespace octavo {
namespace {

// A token's logit after penalties, in vLLM's order.
float penalized(float x, const PenaltyRows& p, std::int64_t i, std::int32_t count) {
  if (x > 0.0f) {
    x /= p.repetition[i];
    if (x > std::numeric_limits<float>::max()) x = std::numeric_limits<float>::max();
  } else {
    x *= p.repetition[i];
  }
  if (count > 0) {
    x -= p.frequency[i] * static_cast<float>(count);
    x -= p.presence[i];
  }
  return x;
}

}  // namespace

void mask(const LogitsView& logits, const std::int32_t* rows, const std::int32_t* token_ids,
          std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    logits.data[rows[i] * logits.ld + token_ids[i]] = -std::numeric_limits<float>::infinity();
  }
}

void add_bias(const LogitsView& logits, const std::int32_t* rows, const std::int32_t* token_ids,
              const float* bias, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) logits.data[rows[i] * logits.ld + token_ids[i]] += bias[i];
}

void allow(ThreadPool& pool, const KernelTable& kernels, const LogitsView& logits,
           const std::int32_t* rows, const std::int32_t* bitmask, std::int64_t n) {
  const std::int64_t words = (logits.vocab + 31) / 32;
  pool.run([&](int thread) {
    for (std::int64_t i = thread; i < n; i += pool.num_threads()) {
      kernels.row_allow(logits.data + rows[i] * logits.ld, logits.vocab, bitmask + i * words);
    }
  });
}

void penalize(ThreadPool& pool, const LogitsView& logits, const std::int32_t* rows,
              const PenaltyRows& penalties, std::int64_t n) {
  pool.run([&](int thread) {
    for (std::int64_t i = thread; i < n; i += pool.num_threads()) {
      float* x = logits.data + rows[i] * logits.ld;
      for (std::int32_t j = penalties.starts[i]; j < penalties.starts[i + 1]; ++j) {
        float& logit = x[penalties.token_ids[j]];
        logit = penalized(logit, penalties, i, penalties.counts[j]);
      }
    }
  });
}

}  // namespace octavo
