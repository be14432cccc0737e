// Sampling from one row of logits; semantics in octavo.kernels.sampling_ops.
//
// Weights are multiples of kWeightUnit, so that their sums are exact: whichever way a total, a cut
// or a draw is found, it is the same one.
#pragma once

#include <cstdint>
#include <vector>

#include "api/kernel_table.h"

namespace octavo {

struct RowFilters {
  float temperature;
  std::int32_t top_k;
  float top_p, min_p;
};

// With one thread's work space: rows of the same size one after the other.
class RowSampler {
 public:
  RowSampler(const KernelTable& kernels, std::int64_t vocab);

  // The token that the uniform number u in [0, 1) draws from the row x [vocab].
  std::int32_t sample(const float* x, const RowFilters& filters, double u);

  // Turns x into the logits that `sample` draws from.
  void process(float* x, const RowFilters& filters);

  // ids and values [1 + k]: of `token` and of the k most likely.
  void logprobs(const float* x, std::int32_t token, std::int64_t k, bool normalized,
                std::int32_t* ids, float* values, std::int32_t* rank);

 private:
  struct Token {
    float logit, weight;
    std::int32_t id;
  };

  // Some tokens of a row, in order of their ids, and how far they are kept: those before `last` and
  // itself, most likely first and equal logits by id. Ids are indices into `logits`.
  struct Kept {
    const float* logits;
    std::int64_t size;
    const std::int32_t* token_ids;  // null: all tokens of the row
    float top;                      // the largest logit
    float last_logit;
    std::int64_t last_id;
    double weight;

    bool has(std::int64_t i) const {
      return logits[i] > last_logit || (logits[i] == last_logit && i <= last_id);
    }
  };

  struct Range {
    float low, high;
  };

  static bool is_before(const Token& a, const Token& b);

  std::int32_t argmax(const float* x, float top) const;
  float kth_maximum(std::int64_t k, std::int64_t num_blocks);

  Kept filter(const float* x, float top, const RowFilters& filters);
  void collect(const float* x, float least, Kept* kept);
  void keep_most_likely(std::int64_t k, Kept* kept);
  float least_of_top_k(const float* x, float top, std::int64_t k);
  void cut_by_count(std::int64_t k, Kept* kept);
  void cut(double limit, Kept* kept);
  bool cut_between(float low, float high, double limit, Kept* kept, double* through);
  Range guess(const Kept& kept, double limit, double total, float ceiling) const;
  void select(double limit, double above, Kept* kept);

  void find_most_likely(const float* x, std::int64_t k);
  void sort_all(const float* x);

  const KernelTable* kernels_;
  std::int64_t vocab_;
  std::vector<float> maxima_, scratch_;  // of a row's blocks, or of a Kept's
  std::vector<float> weights_;           // of a Kept's tokens
  std::vector<float> logits_;            // of the tokens that `collect` left, and
  std::vector<std::int32_t> token_ids_;  // their ids
  std::vector<std::int32_t> found_ids_;  // of the tokens among which a cut is sought, and
  std::vector<float> found_logits_;
  std::vector<Token> candidates_;
  std::vector<std::uint64_t> keys_, sorted_;  // for sort_all; empty until then
};

}  // namespace octavo
