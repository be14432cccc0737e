// One item of paged causal attention: up to 8 tokens of a request, and query heads of one kv head,
// which share its loads.
//
// Softmax runs per absolute chunk of 256 tokens; chunks are merged in order. Every output row is
// one fixed chain of operations over its own tokens, whatever item it is part of:
//   - scores outside a row's own range become -inf before anything reads them;
//   - values are multiplied in one chain over ascending tokens of the row's range. At its ends the
//     unused half of an element pair is zeroed, so that not even a NaN there has an effect. Rows of
//     one item run together where their ranges agree.
#pragma once

#include "kernels/attention_tiles.inl.h"

namespace octavo {
namespace {

constexpr int kMaxItemRows = 32;
constexpr float kLog2E = 1.442695041f;
alignas(64) constexpr float kLaneNumbers[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                8, 9, 10, 11, 12, 13, 14, 15};

// What a score is multiplied with to be an exponent of 2.
OCTAVO_INLINE float exponent_scale(const AttentionArgs& args) {
  return args.soft_cap > 0 ? kLog2E : args.scale * kLog2E;
}

// The largest exponent of one row in a chunk. Scores get their soft cap, and become -inf outside of
// [begin, end), in the vectors that it touches.
OCTAVO_INLINE float mask_scores(float* s, int begin, int end, const AttentionArgs& args) {
  const int first = begin / kLanes * kLanes, last = round_up(end, kLanes);
  if (args.soft_cap > 0) {
    const F32 inner = set1(args.scale / args.soft_cap), outer = set1(args.soft_cap);
    for (int j = first; j < last; j += kLanes)
      store(s + j, mul(outer, vtanh(mul(load(s + j), inner))));
  }
  const F32 hidden = set1(-__builtin_inff());
  if (first < begin) {
    const F32 outside = set1(static_cast<float>(begin - first));
    store(s + first, select_greater(outside, load(kLaneNumbers), hidden, load(s + first)));
  }
  if (end < last) {
    const F32 inside = set1(static_cast<float>(end - last + kLanes));
    float* ragged = s + last - kLanes;
    store(ragged, select_greater(inside, load(kLaneNumbers), load(ragged), hidden));
  }
  F32 top = set1(-1.0e38f);
  for (int j = first; j < last; j += kLanes) top = vmax(load(s + j), top);
  return reduce_max(top) * exponent_scale(args);
}

// Probabilities of one row in a chunk, after mask_scores: p = exp2(score * scale - max) on
// [begin, end), zero in the rest of the vectors that it touches. Returns their sum before rounding.
// (Rows are first all masked, so that one's maximum is not waited for.)
template <class E>
OCTAVO_INLINE float exponentiate(const float* s, typename E::T* p, int begin, int end,
                                 const AttentionArgs& args, float max) {
  const int first = begin / kLanes * kLanes, last = round_up(end, kLanes);
  const F32 scale = set1(exponent_scale(args)), shift = set1(-max);
  F32 total = set1(0.0f);
  for (int j = first; j < last; j += kLanes) {
    const F32 e = vexp2_of_negative(fma(load(s + j), scale, shift));
    total = add(total, e);
    E::narrow(p + j, e);
  }
  return reduce_add(total);
}

// Merges a chunk's result into a row's: both are (max, sum of exp2, values not yet divided).
OCTAVO_INLINE void merge_row(float* out, float* max, float* sum, const float* chunk_out,
                             float chunk_max, float chunk_sum, int ld, bool first) {
  if (first) {
    *max = chunk_max;
    *sum = chunk_sum;
    for (int j = 0; j < ld; j += kLanes) store(out + j, load(chunk_out + j));
    return;
  }
  const float top = *max > chunk_max ? *max : chunk_max;
  const F32 a = vexp2(set1(*max - top)), b = vexp2(set1(chunk_max - top));
  alignas(64) float lanes[kLanes];
  store(lanes, fma(set1(*sum), a, mul(set1(chunk_sum), b)));
  *max = top;
  *sum = lanes[0];
  for (int j = 0; j < ld; j += kLanes) {
    store(out + j, fma(load(out + j), a, mul(load(chunk_out + j), b)));
  }
}

// Pages of a chunk's blocks [first, last), by block of the chunk. Others are not to be read.
struct ChunkPages {
  const char* pages[kChunkBlocks];
  int first, last;
};

// What a chunk's work fetches on its way, by block: half a page of the next chunk with its scores,
// half a page with its values, so that pages are read from memory one after the other
// (docs/performance.md, "Reading the KV cache").
struct PrefetchPlan {
  const char* scores[kChunkBlocks];  // every second line of a page
  const char* values[kChunkBlocks];  // one end of a page

  OCTAVO_INLINE PrefetchPlan(const ChunkPages& now, const ChunkPages& next,
                             std::int64_t page_bytes) {
    const int halves = now.last - now.first;
    for (int i = 0; i < halves; ++i) {
      const int block = now.first + i, page = next.first + i / 2, later = page + (halves + 1) / 2;
      const char* own = now.pages[block];  // where there are no more: what is in the cache
      scores[block] = page < next.last ? next.pages[page] + i % 2 * kLineBytes : own;
      values[block] = later < next.last ? next.pages[later] + i % 2 * page_bytes / 2 : own;
    }
  }
};

struct ItemRef {
  int request, token, tokens, head, heads;
};

// An item at work, in one thread's scratch.
template <class E>
struct AttentionItem {
  using T = typename E::T;
  static constexpr std::int64_t kScoreBytes = kMaxItemRows * kScoreLd * sizeof(float);

  ItemRef ref{-1, 0, 0, 0, 0};
  int rows = 0;                                // tokens * heads, token-major
  int begin[kMaxItemRows], end[kMaxItemRows];  // attended tokens, per token
  int lowest = 0, highest = 0;                 // their union
  float max[kMaxItemRows], sum[kMaxItemRows], chunk_max[kMaxItemRows], chunk_sum[kMaxItemRows];

  int ld;
  float* scores;     // [kMaxItemRows][kScoreLd]
  T* probabilities;  // the same
  float* out;        // [kMaxItemRows][ld]
  float* chunk_out;  // the same
  T* q;              // [kMaxItemRows][head_dim]

  static std::int64_t bytes(int head_dim) {
    return 2 * kScoreBytes + 3 * kMaxItemRows * round_up(head_dim, 16) * sizeof(float);
  }

  AttentionItem(char* scratch, int head_dim) : ld(round_up(head_dim, 16)) {
    scores = reinterpret_cast<float*>(scratch);
    probabilities = reinterpret_cast<T*>(scratch + kScoreBytes);
    out = reinterpret_cast<float*>(scratch + 2 * kScoreBytes);
    chunk_out = out + kMaxItemRows * ld;
    q = reinterpret_cast<T*>(chunk_out + kMaxItemRows * ld);
  }

  void start(const AttentionArgs& args, const StepView& step, const ItemRef& item) {
    const int dim = args.heads.head_dim;
    ref = item;
    rows = item.tokens * item.heads;
    lowest = 0x7fffffff;
    highest = 0;
    for (int t = 0; t < item.tokens; ++t) {
      end[t] = step.positions[item.token + t] + 1;
      begin[t] = args.window > 0 && end[t] > args.window ? end[t] - args.window : 0;
      lowest = begin[t] < lowest ? begin[t] : lowest;
      highest = end[t] > highest ? end[t] : highest;
      const T* src =
          row_of<T>(*args.q, item.token + t) + static_cast<std::int64_t>(item.head) * dim;
      __builtin_memcpy(q + t * item.heads * dim, src, sizeof(T) * item.heads * dim);
    }
  }

  // A row's range inside a chunk; empty where begin >= end.
  OCTAVO_INLINE void range(int token, int chunk, int* b, int* e) const {
    const int base = chunk * kChunk;
    *b = begin[token] > base ? begin[token] - base : 0;
    *e = end[token] - base < kChunk ? end[token] - base : kChunk;
  }

  OCTAVO_INLINE bool starts_in(int row, int chunk) const {
    return begin[row / ref.heads] >= chunk * kChunk;
  }

  // chunk_out, chunk_max, chunk_sum of the rows whose range is not empty.
  void attend_chunk(const AttentionArgs& args, int chunk, const ChunkPages& pages,
                    const ChunkPages* next) {
    const int dim = args.heads.head_dim;
    // Several tokens make it a matter of arithmetic.
    const bool prefetch = next && ref.tokens == 1;
    const PrefetchPlan ahead(pages, prefetch ? *next : pages, args.kv.head_bytes);
    score(pages, prefetch ? ahead.scores : nullptr, dim);
    int low = 0, high = kChunk;  // low … high: what every row attends to
    for (int t = 0; t < ref.tokens; ++t) {
      int b, e;
      range(t, chunk, &b, &e);
      low = b > low ? b : low;
      high = e < high ? e : high;
      for (int i = t * ref.heads; i < (t + 1) * ref.heads; ++i) {
        float* o = chunk_out + i * ld;
        for (int j = 0; j < ld; j += kLanes) store(o + j, set1(0.0f));
        if (b < e) chunk_max[i] = mask_scores(scores + i * kScoreLd, b, e, args);
      }
    }
    for (int i = 0; i < rows; ++i) {
      int b, e;
      range(i / ref.heads, chunk, &b, &e);
      if (b >= e) continue;
      chunk_sum[i] = exponentiate<E>(scores + i * kScoreLd, probabilities + i * kScoreLd, b, e,
                                     args, chunk_max[i]);
    }
    // Where ranges differ, rows only meet at whole blocks: a pair of elements is multiplied once.
    if (ref.tokens > 1) {
      low = round_up(low, kBlockSize);
      high = high > 0 ? high / kBlockSize * kBlockSize : 0;
    }
    const bool shared = low < high;
    for (int t = 0; ref.tokens > 1 && t < ref.tokens; ++t) {
      int b, e;
      range(t, chunk, &b, &e);
      multiply(pages.pages, nullptr, t * ref.heads, ref.heads, b, shared ? low : e, dim);
    }
    if (shared) multiply(pages.pages, prefetch ? ahead.values : nullptr, 0, rows, low, high, dim);
    for (int t = 0; ref.tokens > 1 && shared && t < ref.tokens; ++t) {
      int b, e;
      range(t, chunk, &b, &e);
      multiply(pages.pages, nullptr, t * ref.heads, ref.heads, high, e, dim);
    }
  }

  void merge_chunk(int chunk) {
    for (int i = 0; i < rows; ++i) {
      int b, e;
      range(i / ref.heads, chunk, &b, &e);
      if (b >= e) continue;
      merge_row(out + i * ld, &max[i], &sum[i], chunk_out + i * ld, chunk_max[i], chunk_sum[i], ld,
                starts_in(i, chunk));
    }
  }

  void finish(const AttentionArgs& args) {
    const int dim = args.heads.head_dim;
    const int whole = dim / kLanes * kLanes;
    for (int i = 0; i < rows; ++i) {
      const F32 inverse = inverse_total(args, i);
      T* to = row_of<T>(*args.out, ref.token + i / ref.heads) +
              static_cast<std::int64_t>(ref.head + i % ref.heads) * dim;
      for (int j = 0; j < whole; j += kLanes) {
        E::narrow(to + j, mul(load(out + i * ld + j), inverse));
      }
      if (whole < dim) {
        alignas(64) T rest[kLanes];
        E::narrow(rest, mul(load(out + i * ld + whole), inverse));
        __builtin_memcpy(to + whole, rest, sizeof(T) * (dim - whole));
      }
    }
  }

 private:
  // What turns a row's values into their mean. A sink is a logit in the sum that has no value.
  OCTAVO_INLINE F32 inverse_total(const AttentionArgs& args, int row) const {
    if (!args.sinks) return set1(1.0f / sum[row]);
    const float sink = args.sinks[ref.head + row % ref.heads] * kLog2E;
    const float top = max[row] > sink ? max[row] : sink;
    const F32 weight = vexp2(set1(max[row] - top));
    return div(weight, fma(set1(sum[row]), weight, vexp2(set1(sink - top))));
  }

  void score(const ChunkPages& pages, const char* const* ahead, int head_dim) {
    const int steps = head_dim / E::kStep;
    for (int b = pages.first; b < pages.last; b += kScoreBlocks) {
      const int nb = pages.last - b < kScoreBlocks ? pages.last - b : kScoreBlocks;
      for (int i = 0, mr; i < rows; i += mr) {
        mr = tile_rows(rows - i, kScoreRows);
        float* s = scores + i * kScoreLd + b * kBlockSize;
        if (ahead && i == 0) {
          score_blocks<true>(nb, mr, q + i * head_dim, head_dim, pages.pages + b, ahead + b, steps,
                             s);
        } else {
          score_blocks<false>(nb, mr, q + i * head_dim, head_dim, pages.pages + b, nullptr, steps,
                              s);
        }
      }
    }
  }

  template <bool kPrefetch>
  static OCTAVO_INLINE void score_blocks(int nb, int mr, const T* x, int ldx,
                                         const char* const* pages, const char* const* next,
                                         int steps, float* s) {
    switch (nb) {
      case 1:
        return score_rows<E, 1, kPrefetch>(mr, x, ldx, pages, next, steps, s);
      case 2:
        return score_rows<E, 2, kPrefetch>(mr, x, ldx, pages, next, steps, s);
      case 3:
        return score_rows<E, 3, kPrefetch>(mr, x, ldx, pages, next, steps, s);
      case 4:
        return score_rows<E, 4, kPrefetch>(mr, x, ldx, pages, next, steps, s);
    }
  }

  // chunk_out += p · v for rows [row, row + count) over tokens [lo, hi) of the chunk.
  void multiply(const char* const* pages, const char* const* ahead, int row, int count, int lo,
                int hi, int head_dim) {
    if (lo >= hi) return;
    const int vectors = (head_dim + kLanes - 1) / kLanes;
    for (int i = row, mr; i < row + count; i += mr) {
      mr = tile_rows(row + count - i, kValueRows);
      for (int v = 0; v < vectors; v += kValueVectors) {
        const int nv = vectors - v < kValueVectors ? vectors - v : kValueVectors;
        const T* p = probabilities + i * kScoreLd;
        float* o = chunk_out + i * ld + v * kLanes;
        if (ahead && i == row) {
          value_columns<true>(nv, mr, p, pages, ahead, lo, hi, head_dim, v * kLanes, o);
        } else {
          value_columns<false>(nv, mr, p, pages, nullptr, lo, hi, head_dim, v * kLanes, o);
        }
      }
    }
  }

  template <bool kPrefetch>
  OCTAVO_INLINE void value_columns(int nv, int mr, const T* p, const char* const* pages,
                                   const char* const* next, int lo, int hi, int head_dim,
                                   int column, float* o) const {
    switch (nv) {
      case 1:
        return value_rows<E, 1, kPrefetch>(mr, p, pages, next, lo, hi, head_dim, column, o, ld);
      case 2:
        return value_rows<E, 2, kPrefetch>(mr, p, pages, next, lo, hi, head_dim, column, o, ld);
      case 3:
        return value_rows<E, 3, kPrefetch>(mr, p, pages, next, lo, hi, head_dim, column, o, ld);
      case 4:
        return value_rows<E, 4, kPrefetch>(mr, p, pages, next, lo, hi, head_dim, column, o, ld);
    }
  }
};

}  // namespace
}  // namespace octavo
