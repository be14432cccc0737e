#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace octavo {
namespace {

struct Candidate {
  float logit;
  std::int32_t id;
};

// Most likely first; equal logits by id.
bool before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

}  // namespace

// One thread's work space, kept between calls: nothing is allocated while a job runs.
struct Sampler::Workspace {
  const KernelTable* kernels = nullptr;
  std::vector<float> weights;
  std::vector<double> sums;
  std::vector<std::int32_t> ids;
  std::vector<Candidate> candidates;

  std::int32_t sample_row(const float* x, std::int64_t vocab, const SamplingRows& rows,
                          std::int64_t r);
  void logprob_row(const float* x, std::int64_t vocab, std::int32_t token, std::int64_t k,
                   std::int32_t* out_ids, float* values, std::int32_t* rank);

 private:
  void collect(const float* x, std::int64_t n, float threshold);
  std::int32_t draw_any(std::int64_t vocab, double total, double u) const;
};

namespace {

// The first id with the largest logit; 0 where there is nothing but NaN.
std::int32_t argmax(const float* x, std::int64_t n, float top) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (x[i] == top) return static_cast<std::int32_t>(i);
  }
  return 0;
}

bool by_id(const Candidate& a, const Candidate& b) { return a.id < b.id; }

double weight_of(const std::vector<Candidate>& c, const std::vector<float>& weights) {
  double sum = 0.0;
  for (const Candidate& x : c) sum += weights[x.id];
  return sum;
}

// Keeps the k most likely candidates.
void keep_top_k(std::int64_t k, std::vector<Candidate>& c) {
  if (k >= static_cast<std::int64_t>(c.size())) return;
  std::nth_element(c.begin(), c.begin() + k, c.end(), before);
  c.resize(k);
}

// Keeps the most likely candidates up to the one with which their weights reach `limit`: a
// quickselect that looks only into the half where the limit falls.
void keep_top_p(double limit, const std::vector<float>& weights, std::vector<Candidate>& c) {
  std::int64_t begin = 0, end = static_cast<std::int64_t>(c.size());
  double above = 0.0;  // weight of candidates before `begin`
  while (end - begin > 1) {
    const std::int64_t middle = begin + (end - begin) / 2;
    std::nth_element(c.begin() + begin, c.begin() + middle, c.begin() + end, before);
    double half = 0.0;
    for (std::int64_t i = begin; i < middle; ++i) half += weights[c[i].id];
    if (above + half >= limit) {
      end = middle;
    } else {
      above += half;
      begin = middle;
    }
  }
  c.resize(std::max<std::int64_t>(end, 1));
}

// The first id whose running sum exceeds u * total, over candidates in order of id.
std::int32_t draw(const std::vector<Candidate>& c, const std::vector<float>& weights, double u) {
  const double total = weight_of(c, weights);
  double running = 0.0;
  for (const Candidate& x : c) {
    running += weights[x.id];
    if (running > u * total) return x.id;
  }
  return c.back().id;
}

}  // namespace

// Candidates whose weight is at least `threshold`, in order of id.
void Sampler::Workspace::collect(const float* x, std::int64_t n, float threshold) {
  const std::int64_t count = kernels->row_collect(weights.data(), n, threshold, ids.data());
  candidates.resize(count);
  for (std::int64_t i = 0; i < count; ++i) candidates[i] = {x[ids[i]], ids[i]};
}

// `draw` over all ids: whole blocks first.
std::int32_t Sampler::Workspace::draw_any(std::int64_t vocab, double total, double u) const {
  double running = 0.0;
  std::int32_t last = 0;
  for (std::int64_t begin = 0; begin < vocab; begin += kSumBlock) {
    const double sum = sums[begin / kSumBlock];
    if (running + sum > u * total) {
      const std::int64_t end = std::min<std::int64_t>(begin + kSumBlock, vocab);
      double inside = running;
      for (std::int64_t i = begin; i < end; ++i) {
        if (weights[i] > 0.0f) last = static_cast<std::int32_t>(i);
        inside += weights[i];
        if (inside > u * total) return last;
      }
    }
    running += sum;
  }
  return last;  // only where rounding hides the last bit of the total
}

std::int32_t Sampler::Workspace::sample_row(const float* x, std::int64_t vocab,
                                            const SamplingRows& rows, std::int64_t r) {
  const float temperature = rows.temperature[r];
  const float top = kernels->row_max(x, vocab);
  if (!(temperature > 0.0f) || !std::isfinite(top)) return argmax(x, vocab, top);
  const double u = philox_uniform(rows.seed[r], static_cast<std::uint32_t>(rows.position[r]),
                                  static_cast<std::uint32_t>(rows.sample_index[r]), 0);
  const float inverse = std::min(1.0f / temperature, std::numeric_limits<float>::max());
  kernels->row_exp(x, vocab, top, inverse, weights.data(), sums.data());
  const double total = std::accumulate(sums.begin(), sums.end(), 0.0);
  const bool has_k = rows.top_k[r] > 0 && rows.top_k[r] < vocab;
  const bool has_p = rows.top_p[r] < 1.0f, has_min = rows.min_p[r] > 0.0f;
  if (!has_k && !has_p && !has_min) return draw_any(vocab, total, u);

  float floor = has_min ? std::min(rows.min_p[r], 1.0f) : 0.0f;  // the largest weight is 1
  const bool only_p = has_p && !has_k && !has_min;
  if (only_p) {
    // Tokens lighter than this weigh less than (1 - p) of the total together: none of them is kept.
    const double share = (1.0 - static_cast<double>(rows.top_p[r])) * total;
    floor = static_cast<float>(0.999 * share / static_cast<double>(vocab));
  }
  collect(x, vocab, std::max(floor, std::numeric_limits<float>::min()));
  if (has_k) keep_top_k(rows.top_k[r], candidates);
  if (has_p) {
    double kept = total;
    if (!only_p) {
      std::sort(candidates.begin(), candidates.end(), by_id);
      kept = weight_of(candidates, weights);
    }
    keep_top_p(static_cast<double>(rows.top_p[r]) * kept, weights, candidates);
  }
  std::sort(candidates.begin(), candidates.end(), by_id);
  return draw(candidates, weights, u);
}

void Sampler::Workspace::logprob_row(const float* x, std::int64_t vocab, std::int32_t token,
                                     std::int64_t k, std::int32_t* out_ids, float* values,
                                     std::int32_t* rank) {
  const float top = kernels->row_max(x, vocab);
  kernels->row_exp(x, vocab, top, 1.0f, weights.data(), sums.data());
  const double log_total = std::log(std::accumulate(sums.begin(), sums.end(), 0.0));
  const auto log_prob = [&](std::int32_t id) {
    return static_cast<float>((static_cast<double>(x[id]) - top) - log_total);
  };
  out_ids[0] = token;
  values[0] = log_prob(token);
  *rank = static_cast<std::int32_t>(1 + kernels->row_count_greater(x, vocab, x[token]));
  if (k == 0) return;
  candidates.resize(vocab);
  for (std::int64_t i = 0; i < vocab; ++i) {
    const float value = std::isnan(x[i]) ? -std::numeric_limits<float>::infinity() : x[i];
    candidates[i] = {value, static_cast<std::int32_t>(i)};
  }
  std::partial_sort(candidates.begin(), candidates.begin() + k, candidates.end(), before);
  for (std::int64_t j = 0; j < k; ++j) {
    out_ids[1 + j] = candidates[j].id;
    values[1 + j] = log_prob(candidates[j].id);
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

void Sampler::logprobs(const LogitsView& logits, const std::int32_t* rows,
                       const std::int32_t* token_ids, std::int64_t n, std::int64_t k,
                       std::int32_t* ids, float* values, std::int32_t* ranks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  prepare(logits.vocab);
  pool_->run([&](int thread) {
    for (std::int64_t i = thread; i < n; i += pool_->num_threads()) {
      const float* x = logits.data + rows[i] * logits.ld;
      const std::int64_t at = i * (1 + k);
      workspaces_[thread].logprob_row(x, logits.vocab, token_ids[i], k, ids + at, values + at,
                                      ranks + i);
    }
  });
}

}  // namespace octavo
