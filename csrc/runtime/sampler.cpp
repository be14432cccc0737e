#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

namespace octavo {
namespace {

struct Candidate {
  float logit;
  std::int32_t id;
};

// Most likely first; equal logits by id. What filters keep is a beginning of this order.
bool before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

constexpr int kBuckets = 2048;
constexpr float kBucketsPerNat = 64.0f;
constexpr std::int64_t kFirstTry = 256;  // most likely tokens that a top-p is sought in first
constexpr float kLeastDivisor = 1e-30f;  // logits divided by less might not be finite

}  // namespace

// One thread's work space, kept between calls: nothing is allocated while a job runs.
struct Sampler::Workspace {
  const KernelTable* kernels = nullptr;
  std::vector<float> weights, maxima, scratch;
  std::vector<double> sums;
  std::vector<std::int32_t> ids;
  std::vector<Candidate> candidates;

  std::int32_t sample_row(const float* x, std::int64_t n, const SamplingRows& rows, std::int64_t r);
  void process_row(float* x, std::int64_t n, const SamplingRows& rows, std::int64_t r);
  void logprob_row(const float* x, std::int64_t n, std::int32_t token, std::int64_t k,
                   bool normalized, std::int32_t* out_ids, float* values, std::int32_t* rank);

 private:
  // A filter's measure: how many tokens it keeps, or how much of their weight.
  enum class By { kCount, kWeight };

  double total() const { return std::accumulate(sums.begin(), sums.end(), 0.0); }
  double measure(By by, std::int32_t id) const { return by == By::kCount ? 1.0 : weights[id]; }
  std::int32_t argmax(const float* x, std::int64_t n, float top) const;
  bool collect_most_likely(const float* x, std::int64_t n, std::int64_t k);
  Candidate cut_candidates(By by, double limit);
  Candidate cut_buckets(const float* x, std::int64_t n, float top, float inverse, By by,
                        double limit);
  void keep_up_to(const float* x, std::int64_t n, const Candidate& last);
  bool weigh(const float* x, std::int64_t n, float top, const SamplingRows& rows, std::int64_t r);
  std::int32_t draw(std::int64_t n, double u) const;
};

// The first id with the largest logit; 0 where there is nothing but NaN.
std::int32_t Sampler::Workspace::argmax(const float* x, std::int64_t n, float top) const {
  for (std::int64_t block = 0; block * kMaxBlock < n; ++block) {
    if (maxima[block] != top) continue;
    for (std::int64_t i = block * kMaxBlock; i < n; ++i) {
      if (x[i] == top) return static_cast<std::int32_t>(i);
    }
  }
  return 0;
}

// Fills `candidates` with the k most likely tokens and perhaps more: all that reach the k-th
// largest of the blocks' maxima; with fewer than k only where the others are -inf. False where
// there are fewer than k blocks.
bool Sampler::Workspace::collect_most_likely(const float* x, std::int64_t n, std::int64_t k) {
  if (k > static_cast<std::int64_t>(maxima.size())) return false;
  scratch = maxima;
  std::nth_element(scratch.begin(), scratch.begin() + (k - 1), scratch.end(), std::greater<>());
  const float least = std::max(scratch[k - 1], std::numeric_limits<float>::lowest());
  const std::int64_t count = kernels->row_collect(x, n, least, ids.data());
  candidates.resize(count);
  for (std::int64_t i = 0; i < count; ++i) candidates[i] = {x[ids[i]], ids[i]};
  return true;
}

// The candidate with which the most likely ones reach `limit`, by a quickselect that looks only
// into the half where the limit falls; the last one where they do not.
Candidate Sampler::Workspace::cut_candidates(By by, double limit) {
  auto begin = candidates.begin(), end = candidates.end();
  double above = 0.0;  // of candidates before `begin`
  while (end - begin > 1) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, before);
    double half = 0.0;
    for (auto c = begin; c != middle; ++c) half += measure(by, c->id);
    if (above + half >= limit) {
      end = middle;
    } else {
      above += half;
      begin = middle;
    }
  }
  return *begin;
}

// The same over all tokens of some weight: first by buckets of (logit - max) / T.
Candidate Sampler::Workspace::cut_buckets(const float* x, std::int64_t n, float top, float inverse,
                                          By by, double limit) {
  double histogram[kBuckets] = {};
  const auto bucket_of = [&](std::int64_t i) {
    const float depth = (top - x[i]) * inverse * kBucketsPerNat;
    return static_cast<int>(std::min(depth, static_cast<float>(kBuckets - 1)));
  };
  int deepest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    if (!(weights[i] > 0.0f)) continue;
    const int bucket = bucket_of(i);
    histogram[bucket] += measure(by, static_cast<std::int32_t>(i));
    deepest = std::max(deepest, bucket);
  }
  int cut = 0;
  double above = 0.0;
  while (cut < deepest && above + histogram[cut] < limit) above += histogram[cut++];
  candidates.clear();
  for (std::int64_t i = 0; i < n; ++i) {
    if (weights[i] > 0.0f && bucket_of(i) == cut) {
      candidates.push_back({x[i], static_cast<std::int32_t>(i)});
    }
  }
  return cut_candidates(by, limit - above);
}

void Sampler::Workspace::keep_up_to(const float* x, std::int64_t n, const Candidate& last) {
  kernels->row_keep(x, n, last.logit, last.id, weights.data(), sums.data());
}

// The first id whose running weight exceeds u times the total: whole blocks first.
std::int32_t Sampler::Workspace::draw(std::int64_t n, double u) const {
  const double target = u * total();
  double running = 0.0;
  std::int32_t last = 0;
  for (std::int64_t begin = 0; begin < n; begin += kSumBlock) {
    const double sum = sums[begin / kSumBlock];
    if (running + sum > target) {
      const std::int64_t end = std::min<std::int64_t>(begin + kSumBlock, n);
      double inside = running;
      for (std::int64_t i = begin; i < end; ++i) {
        if (weights[i] > 0.0f) last = static_cast<std::int32_t>(i);
        inside += weights[i];
        if (inside > target) return last;
      }
    }
    running += sum;
  }
  return last;  // only where rounding hides the last bit of the total
}

// Fills `weights`, zero where a filter drops the token. Returns whether there is any filter.
bool Sampler::Workspace::weigh(const float* x, std::int64_t n, float top, const SamplingRows& rows,
                               std::int64_t r) {
  const float inverse = std::min(1.0f / rows.temperature[r], std::numeric_limits<float>::max());
  kernels->row_exp(x, n, top, inverse, weights.data(), sums.data());

  const std::int64_t k = rows.top_k[r];
  const bool has_min_p = rows.min_p[r] > 0.0f, has_top_k = k > 0 && k < n;
  const bool has_top_p = rows.top_p[r] < 1.0f;
  if (has_min_p) {  // in terms of weights: the largest is 1
    const float floor = std::min(rows.min_p[r], 1.0f);
    kernels->row_keep(weights.data(), n, floor, n, weights.data(), sums.data());
  }
  bool collected = false;  // `candidates` hold all that may be kept
  if (has_top_k) {
    collected = collect_most_likely(x, n, k);
    keep_up_to(x, n,
               collected ? cut_candidates(By::kCount, static_cast<double>(k))
                         : cut_buckets(x, n, top, inverse, By::kCount, static_cast<double>(k)));
  }
  if (has_top_p) {
    const double limit = static_cast<double>(rows.top_p[r]) * total();
    if (!collected && collect_most_likely(x, n, kFirstTry)) {
      double weight = 0.0;
      for (const Candidate& c : candidates) weight += weights[c.id];
      collected = weight >= limit;
    }
    keep_up_to(x, n,
               collected ? cut_candidates(By::kWeight, limit)
                         : cut_buckets(x, n, top, inverse, By::kWeight, limit));
  }
  return has_min_p || has_top_k || has_top_p;
}

std::int32_t Sampler::Workspace::sample_row(const float* x, std::int64_t n,
                                            const SamplingRows& rows, std::int64_t r) {
  const float top = kernels->row_max(x, n, maxima.data());
  if (!(rows.temperature[r] > 0.0f) || !std::isfinite(top)) return argmax(x, n, top);
  weigh(x, n, top, rows, r);
  const double u = philox_uniform(rows.seed[r], static_cast<std::uint32_t>(rows.position[r]),
                                  static_cast<std::uint32_t>(rows.sample_index[r]), 0);
  return draw(n, u);
}

void Sampler::Workspace::process_row(float* x, std::int64_t n, const SamplingRows& rows,
                                     std::int64_t r) {
  const float top = kernels->row_max(x, n, maxima.data());
  if (!(rows.temperature[r] > 0.0f) || !std::isfinite(top)) return;
  const bool is_filtered = weigh(x, n, top, rows, r);
  const float divisor = std::max(rows.temperature[r], kLeastDivisor);
  constexpr float kDropped = -std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < n; ++i) x[i] /= divisor;
  if (is_filtered) {  // NaN has no weight
    for (std::int64_t i = 0; i < n; ++i) x[i] = weights[i] > 0.0f ? x[i] : kDropped;
  } else {
    for (std::int64_t i = 0; i < n; ++i) x[i] = x[i] == x[i] ? x[i] : kDropped;
  }
}

void Sampler::Workspace::logprob_row(const float* x, std::int64_t n, std::int32_t token,
                                     std::int64_t k, bool normalized, std::int32_t* out_ids,
                                     float* values, std::int32_t* rank) {
  const float top = kernels->row_max(x, n, maxima.data());
  double log_total = 0.0;
  if (normalized) {
    kernels->row_exp(x, n, top, 1.0f, weights.data(), sums.data());
    log_total = std::log(total());
  }
  const auto value_of = [&](std::int32_t id) {
    if (std::isnan(x[id])) return -std::numeric_limits<float>::infinity();
    if (!normalized) return x[id];
    return static_cast<float>((static_cast<double>(x[id]) - top) - log_total);
  };
  out_ids[0] = token;
  values[0] = value_of(token);
  *rank = static_cast<std::int32_t>(1 + kernels->row_count_greater(x, n, x[token]));
  if (k == 0) return;
  if (!collect_most_likely(x, n, k) || static_cast<std::int64_t>(candidates.size()) < k) {
    candidates.resize(n);
    for (std::int64_t i = 0; i < n; ++i) {
      const float value = std::isnan(x[i]) ? -std::numeric_limits<float>::infinity() : x[i];
      candidates[i] = {value, static_cast<std::int32_t>(i)};
    }
  }
  std::partial_sort(candidates.begin(), candidates.begin() + k, candidates.end(), before);
  for (std::int64_t j = 0; j < k; ++j) {
    out_ids[1 + j] = candidates[j].id;
    values[1 + j] = value_of(candidates[j].id);
  }
}

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

void Sampler::prepare(std::int64_t vocab) {
  workspaces_.resize(pool_->num_threads());
  for (Workspace& w : workspaces_) {
    w.kernels = kernels_.get();
    w.weights.resize(vocab);
    w.sums.resize((vocab + kSumBlock - 1) / kSumBlock);
    w.maxima.resize((vocab + kMaxBlock - 1) / kMaxBlock);
    w.ids.resize(vocab);
    w.candidates.reserve(vocab);
  }
}

void Sampler::sample(const LogitsView& logits, const SamplingRows& rows, std::int32_t* token_ids) {
  const std::lock_guard<std::mutex> lock(mutex_);
  prepare(logits.vocab);
  pool_->run([&](int thread) {
    for (std::int64_t r = thread; r < logits.rows; r += pool_->num_threads()) {
      const float* x = logits.data + r * logits.ld;
      token_ids[r] = workspaces_[thread].sample_row(x, logits.vocab, rows, r);
    }
  });
}

void Sampler::process(const LogitsView& logits, const std::int32_t* rows,
                      const SamplingRows& sampling, std::int64_t n) {
  const std::lock_guard<std::mutex> lock(mutex_);
  prepare(logits.vocab);
  pool_->run([&](int thread) {
    for (std::int64_t i = thread; i < n; i += pool_->num_threads()) {
      float* x = logits.data + rows[i] * logits.ld;
      workspaces_[thread].process_row(x, logits.vocab, sampling, i);
    }
  });
}

void Sampler::logprobs(const LogitsView& logits, const std::int32_t* rows,
                       const std::int32_t* token_ids, std::int64_t n, std::int64_t k,
                       bool normalized, std::int32_t* ids, float* values, std::int32_t* ranks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  prepare(logits.vocab);
  pool_->run([&](int thread) {
    for (std::int64_t i = thread; i < n; i += pool_->num_threads()) {
      const float* x = logits.data + rows[i] * logits.ld;
      const std::int64_t at = i * (1 + k);
      workspaces_[thread].logprob_row(x, logits.vocab, token_ids[i], k, normalized, ids + at,
                                      values + at, ranks + i);
    }
  });
}

}  // namespace octavo
