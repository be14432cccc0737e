#include "runtime/row_sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

namespace octavo {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr float kLeastDivisor = 1e-30f;  // logits divided by less might not be finite

constexpr std::int64_t kHead = 256;     // most likely tokens that a cut is sought in first
constexpr std::int64_t kDirect = 2048;  // so few tokens are all candidates for the cut
constexpr int kSampled = 16;            // of each kRowBlock tokens
constexpr double kDeviations = 3.0;     // half of what is searched where the sample points to

std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

// The float of an integer, in an order that integers keep: -FLT_MAX … -0, 0 … FLT_MAX.
float float_of(std::int32_t key) {
  if (key < 0) key ^= 0x7fffffff;
  float x;
  std::memcpy(&x, &key, sizeof x);
  return x;
}

std::int32_t key_of(float x) {
  const auto bits = static_cast<std::int32_t>(bits_of(x));
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}

// The least x with (x - top) * inverse >= floor, for a floor of at most 0.
float least_logit(float top, float inverse, float floor) {
  std::int64_t below = key_of(-kInfinity), at = key_of(top);
  while (at - below > 1) {
    const std::int64_t middle = below + (at - below) / 2;
    const float x = float_of(static_cast<std::int32_t>(middle));
    ((x - top) * inverse >= floor ? at : below) = middle;
  }
  return float_of(static_cast<std::int32_t>(at));
}

float inverse_of(float temperature) {
  return std::min(1.0f / temperature, std::numeric_limits<float>::max());
}

// Weights by how far their logits lie below the highest one.
class Buckets {
 public:
  Buckets(float high, float low) : high_(high) {
    const float width = high - low;
    scale_ = width > 0.0f && std::isfinite(width) ? kCount / width : 0.0f;
  }

  int of(float logit) const {
    const float depth = (high_ - logit) * scale_;
    return depth < kCount - 1 ? static_cast<int>(depth) : kCount - 1;
  }
  void add(float logit, double weight) { weights_[of(logit)] += weight; }

  // The bucket with which `above` and the weights from the highest on reach `limit`, or the last
  // one. `above` becomes what comes before it.
  int reach(double limit, double* above) const {
    int bucket = 0;
    while (bucket < kCount - 1 && *above + weights_[bucket] < limit) *above += weights_[bucket++];
    return bucket;
  }

  double total() const { return std::accumulate(weights_, weights_ + kCount, 0.0); }

  float edge(int bucket) const { return high_ - static_cast<float>(bucket) / scale_; }

  static constexpr int kCount = 512;

 private:
  float high_, scale_;
  double weights_[kCount] = {};
};

}  // namespace

RowSampler::RowSampler(const KernelTable& kernels, std::int64_t vocab)
    : kernels_(&kernels), vocab_(vocab) {
  const auto size = static_cast<std::size_t>(vocab + kRowBlock);
  maxima_.resize((vocab + kMaxBlock - 1) / kMaxBlock);
  scratch_.resize(maxima_.size());
  weights_.resize(size);
  logits_.resize(size);
  token_ids_.resize(size);
  found_ids_.resize(size);
  found_logits_.resize(size);
  candidates_.reserve(size);
}

bool RowSampler::is_before(const Token& a, const Token& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// The first id with the largest logit; 0 where there is nothing but NaN.
std::int32_t RowSampler::argmax(const float* x, float top) const {
  for (std::int64_t block = 0; block * kMaxBlock < vocab_; ++block) {
    if (maxima_[block] != top) continue;
    for (std::int64_t i = block * kMaxBlock; i < vocab_; ++i) {
      if (x[i] == top) return static_cast<std::int32_t>(i);
    }
  }
  return 0;
}

// The k-th largest of a row's first `num_blocks` maxima: k tokens are at least as likely.
float RowSampler::kth_maximum(std::int64_t k, std::int64_t num_blocks) {
  const auto begin = scratch_.begin(), end = begin + num_blocks;
  std::copy(maxima_.begin(), maxima_.begin() + num_blocks, begin);
  std::nth_element(begin, begin + (k - 1), end, std::greater<>());
  return scratch_[k - 1];
}

// Keeps the tokens that have at least the logit `least`.
void RowSampler::collect(const float* x, float least, Kept* kept) {
  kept->size = kernels_->row_collect(x, vocab_, least, token_ids_.data(), logits_.data());
  kept->logits = logits_.data();
  kept->token_ids = token_ids_.data();
  if (kept->size > kDirect) kernels_->row_max(kept->logits, kept->size, maxima_.data());
}

// Among the tokens of `kept`: the cut where every token is worth 1.
void RowSampler::cut_by_count(std::int64_t k, Kept* kept) {
  std::fill_n(weights_.begin(), (kept->size + kRowBlock - 1) / kRowBlock * kRowBlock, 1.0f);
  kept->weight = static_cast<double>(kept->size);
  cut(static_cast<double>(k), kept);
}

// Leaves k collected tokens.
void RowSampler::keep_most_likely(std::int64_t k, Kept* kept) {
  cut_by_count(k, kept);
  std::int64_t size = 0;
  for (std::int64_t i = 0; i < kept->size; ++i) {
    if (!kept->has(i)) continue;
    logits_[size] = logits_[i];
    token_ids_[size++] = token_ids_[i];
  }
  kept->size = size;
  kept->last_logit = -kInfinity;
  kept->last_id = size - 1;
  if (size > kDirect) kernels_->row_max(kept->logits, size, maxima_.data());
}

// The least logit that top-k can keep: exactly that, or where k is small one below it.
float RowSampler::least_of_top_k(const float* x, float top, std::int64_t k) {
  const auto num_blocks = static_cast<std::int64_t>(maxima_.size());
  if (k <= num_blocks) return kth_maximum(k, num_blocks);
  Kept all{x, vocab_, nullptr, top, -kInfinity, vocab_ - 1, 0.0};
  cut_by_count(k, &all);
  return all.last_logit;
}

// Fills `weights_`, and keeps what the filters keep.
RowSampler::Kept RowSampler::filter(const float* x, float top, const RowFilters& filters) {
  const float inverse = inverse_of(filters.temperature);
  const bool has_min_p = filters.min_p > 0.0f;
  const bool has_top_k = filters.top_k > 0 && filters.top_k < vocab_;
  Kept kept{x, vocab_, nullptr, top, -kInfinity, vocab_ - 1, 0.0};
  if (has_min_p || has_top_k) {
    float least = kLowest;
    if (has_min_p) {
      const double floor = std::log(std::min(static_cast<double>(filters.min_p), 1.0));
      least = least_logit(top, inverse, static_cast<float>(floor));
    }
    if (has_top_k) least = std::max(least, least_of_top_k(x, top, filters.top_k));
    collect(x, least, &kept);
    if (has_top_k && filters.top_k < kept.size) keep_most_likely(filters.top_k, &kept);
  }
  kept.weight = kernels_->row_weights(kept.logits, kept.size, top, inverse, weights_.data());
  if (filters.top_p < 1.0f) cut(static_cast<double>(filters.top_p) * kept.weight, &kept);
  return kept;
}

// Keeps the most likely tokens, up to the one with which their weight reaches `limit`.
//
// Candidates for that one are: the first few hundred, if it can be among these; or else those where
// a sample says that it is (as in Floyd and Rivest, "Expected time bounds for selection", 1975); or
// else all. Sums are exact, so that they tell whether it is there.
void RowSampler::cut(double limit, Kept* kept) {
  const std::int64_t num_blocks = (kept->size + kMaxBlock - 1) / kMaxBlock;
  double through = 0.0;
  if (kept->size > kDirect) {
    float ceiling = kInfinity;
    if (limit <= static_cast<double>(kHead) && num_blocks >= kHead) {
      ceiling = std::max(kth_maximum(kHead, num_blocks), kLowest);
      if (cut_between(ceiling, kInfinity, limit, kept, &through)) return;
    }
    const Range range = guess(*kept, limit - through, kept->weight - through, ceiling);
    if (cut_between(range.low, range.high, limit, kept, &through)) return;
  }
  cut_between(kLowest, kInfinity, limit, kept, &through);
}

// The same, if the last one has low <= logit <= high; false if not. `through` becomes the weight of
// all tokens from `low` on.
bool RowSampler::cut_between(float low, float high, double limit, Kept* kept, double* through) {
  std::int64_t count;
  double above = kernels_->row_split(kept->logits, weights_.data(), kept->size, low, high,
                                     found_ids_.data(), found_logits_.data(), &count);
  float bottom = low;
  if (low == kLowest) {
    bottom = kept->top;
    for (std::int64_t j = 0; j < count; ++j) {
      if (weights_[found_ids_[j]] > 0.0f) bottom = std::min(bottom, found_logits_[j]);
    }
  }
  Buckets buckets(std::min(high, kept->top), bottom);
  for (std::int64_t j = 0; j < count; ++j) buckets.add(found_logits_[j], weights_[found_ids_[j]]);
  *through = above + buckets.total();
  if (above >= limit || *through < limit) return false;
  const int bucket = buckets.reach(limit, &above);
  candidates_.clear();
  for (std::int64_t j = 0; j < count; ++j) {
    if (buckets.of(found_logits_[j]) != bucket) continue;
    const std::int32_t i = found_ids_[j];
    if (weights_[i] > 0.0f) candidates_.push_back({found_logits_[j], weights_[i], i});
  }
  select(limit, above, kept);
  return true;
}

// Where the tokens below `ceiling`, which weigh `total`, probably reach `limit`: by a sample.
RowSampler::Range RowSampler::guess(const Kept& kept, double limit, double total,
                                    float ceiling) const {
  const auto visit = [&](auto&& add) {
    for (std::int64_t start = 0; start < kept.size; start += kRowBlock) {
      const std::int64_t end = std::min(start + kSampled, kept.size);
      for (std::int64_t i = start; i < end; ++i) {
        if (weights_[i] > 0.0f && kept.logits[i] < ceiling) {
          add(kept.logits[i], static_cast<double>(weights_[i]));
        }
      }
    }
  };
  float top = -kInfinity, bottom = kInfinity;
  double sum = 0.0, squares = 0.0;
  visit([&](float logit, double weight) {
    top = std::max(top, logit);
    bottom = std::min(bottom, logit);
    sum += weight;
    squares += weight * weight;
  });
  Range range{kLowest, ceiling};
  if (!(bottom < top)) return range;
  Buckets buckets(top, bottom);
  visit([&](float logit, double weight) { buckets.add(logit, weight); });
  const double share = limit / total;
  const double error = kDeviations * std::sqrt(squares * share * (1.0 - share));
  double above = 0.0;
  const int first = buckets.reach(share * sum - error, &above);
  const int last = buckets.reach(share * sum + error, &(above = 0.0));
  if (first > 0) range.high = buckets.edge(first);
  if (last < Buckets::kCount - 1) range.low = buckets.edge(last + 1);
  return range;
}

// Among the candidates, behind tokens that weigh `above`: a quickselect that looks only into the
// half where the limit falls.
void RowSampler::select(double limit, double above, Kept* kept) {
  auto begin = candidates_.begin(), end = candidates_.end();
  while (end - begin > 1) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, is_before);
    double through = above;
    for (auto c = begin; c != middle; ++c) through += static_cast<double>(c->weight);
    if (through >= limit) {
      end = middle;
    } else {
      above = through;
      begin = middle;
    }
  }
  kept->last_logit = begin->logit;
  kept->last_id = begin->id;
  kept->weight = above + static_cast<double>(begin->weight);
}

std::int32_t RowSampler::sample(const float* x, const RowFilters& filters, double u) {
  const float top = kernels_->row_max(x, vocab_, maxima_.data());
  if (!(filters.temperature > 0.0f) || !std::isfinite(top)) return argmax(x, top);
  const Kept kept = filter(x, top, filters);
  const std::int64_t drawn = kernels_->row_draw(kept.logits, weights_.data(), kept.size,
                                                kept.last_logit, kept.last_id, u * kept.weight);
  return kept.token_ids ? kept.token_ids[drawn] : static_cast<std::int32_t>(drawn);
}

void RowSampler::process(float* x, const RowFilters& filters) {
  const float top = kernels_->row_max(x, vocab_, maxima_.data());
  if (!(filters.temperature > 0.0f) || !std::isfinite(top)) return;
  const Kept kept = filter(x, top, filters);
  const float divisor = std::max(filters.temperature, kLeastDivisor);
  if (kept.token_ids == nullptr) {
    for (std::int64_t i = 0; i < vocab_; ++i) x[i] = kept.has(i) ? x[i] / divisor : -kInfinity;
    return;
  }
  std::fill_n(x, vocab_, -kInfinity);
  for (std::int64_t i = 0; i < kept.size; ++i) {
    if (kept.has(i)) x[kept.token_ids[i]] = kept.logits[i] / divisor;
  }
}

void RowSampler::logprobs(const float* x, std::int32_t token, std::int64_t k, bool normalized,
                          std::int32_t* ids, float* values, std::int32_t* rank) {
  const float top = kernels_->row_max(x, vocab_, maxima_.data());
  const double log_total = normalized ? std::log(kernels_->row_sum_exp(x, vocab_, top)) : 0.0;
  const auto value_of = [&](std::int32_t id) {
    if (std::isnan(x[id])) return -kInfinity;
    if (!normalized) return x[id];
    return static_cast<float>((static_cast<double>(x[id]) - top) - log_total);
  };
  *rank = static_cast<std::int32_t>(1 + kernels_->row_count_greater(x, vocab_, x[token]));
  find_most_likely(x, k);
  ids[0] = token;
  std::copy_n(found_ids_.begin(), k, ids + 1);
  for (std::int64_t j = 0; j < 1 + k; ++j) values[j] = value_of(ids[j]);
}

// Puts the ids of the k most likely tokens, in order, at the beginning of `found_ids_`.
void RowSampler::find_most_likely(const float* x, std::int64_t k) {
  const auto num_blocks = static_cast<std::int64_t>(maxima_.size());
  if (k == 0) return;
  if (k > num_blocks) return sort_all(x);
  const float least = kth_maximum(k, num_blocks);
  if (least == -kInfinity) return sort_all(x);
  const std::int64_t count =
      kernels_->row_collect(x, vocab_, least, found_ids_.data(), found_logits_.data());
  candidates_.clear();
  for (std::int64_t i = 0; i < count; ++i) {
    candidates_.push_back({found_logits_[i], 0.0f, found_ids_[i]});
  }
  std::partial_sort(candidates_.begin(), candidates_.begin() + k, candidates_.end(), is_before);
  for (std::int64_t j = 0; j < k; ++j) found_ids_[j] = candidates_[j].id;
}

// All ids in order: a stable radix sort by the bits of the logits, NaN as -inf.
void RowSampler::sort_all(const float* x) {
  constexpr int kDigit = 11;
  constexpr std::uint32_t kDigits = 1u << kDigit;
  keys_.resize(vocab_);
  sorted_.resize(vocab_);
  for (std::int64_t i = 0; i < vocab_; ++i) {
    const float value = std::isnan(x[i]) ? -kInfinity : x[i] + 0.0f;  // -0 is 0
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t falling = bits >> 31 ? bits : ~bits & 0x7fffffffu;
    keys_[i] = std::uint64_t{falling} << 32 | static_cast<std::uint32_t>(i);
  }
  for (int shift = 32; shift < 64; shift += kDigit) {
    std::uint32_t starts[kDigits + 1] = {};
    for (const std::uint64_t key : keys_) ++starts[(key >> shift & (kDigits - 1)) + 1];
    for (std::uint32_t d = 0; d < kDigits; ++d) starts[d + 1] += starts[d];
    for (const std::uint64_t key : keys_) sorted_[starts[key >> shift & (kDigits - 1)]++] = key;
    keys_.swap(sorted_);
  }
  for (std::int64_t i = 0; i < vocab_; ++i) found_ids_[i] = static_cast<std::int32_t>(keys_[i]);
}

}  // namespace octavo
