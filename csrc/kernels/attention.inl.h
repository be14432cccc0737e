// Paged causal attention of a mixed batch.
//
// Work items are (up to 8 tokens of a request, kv head); the query heads of a kv head share its
// loads. Softmax runs per absolute chunk of 256 tokens; chunks are merged in order. Every output
// row is one fixed chain of operations over its own tokens, whatever item it is part of:
//   - scores outside a row's own range become -inf before anything reads them;
//   - values of blocks that every row of the item attends to are multiplied for all rows together;
//     those at the edges of a row's range one token at a time, with the unused half of an element
//     pair zeroed, so that not even a NaN there has an effect.
#pragma once

#include "kernels/split.inl.h"

namespace octavo {
namespace {

constexpr int kMaxItemRows = 32;
constexpr int kScoreLd = kChunk + 16;
constexpr float kLog2E = 1.442695041f;

// Scores of MR rows and NB blocks of keys: s[MR][NB * 16] = q · k.
template <class E, int MR, int NB>
OCTAVO_NOINLINE void score_tile(const typename E::T* q, int ldq, const char* const* pages,
                                int steps, float* s) {
  constexpr int kVectors = kBlockSize / kLanes;
  F32 acc[MR][NB * kVectors];
  OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
    OCTAVO_UNROLL for (int j = 0; j < NB * kVectors; ++j) acc[i][j] = set1(0.0f);
  }
  const typename E::T* keys[NB];
  OCTAVO_UNROLL for (int j = 0; j < NB; ++j) {
    keys[j] = reinterpret_cast<const typename E::T*>(pages[j]);
  }
  OCTAVO_NO_UNROLL for (int d = 0; d < steps; ++d) {
    typename E::B key[NB * kVectors];
    OCTAVO_UNROLL for (int j = 0; j < NB * kVectors; ++j) {
      key[j] = E::load(keys[j / kVectors] + (d * kBlockSize + j % kVectors * kLanes) * E::kStep);
    }
    OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
      const typename E::B x = E::broadcast(q + i * ldq + d * E::kStep);
      OCTAVO_UNROLL for (int j = 0; j < NB * kVectors; ++j) acc[i][j] =
          E::dot(acc[i][j], x, key[j]);
    }
  }
  OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
    OCTAVO_UNROLL for (int j = 0; j < NB * kVectors; ++j) {
      store(s + i * kScoreLd + j * kLanes, acc[i][j]);
    }
  }
}

// o[MR][NV * kLanes] += p · v over whole blocks; p holds 16 probabilities per block.
template <class E, int MR, int NV>
OCTAVO_NOINLINE void value_tile(const typename E::T* p, const char* const* pages, int blocks,
                                int head_dim, int column, float* o, int ldo) {
  F32 acc[MR][NV];
  OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
    OCTAVO_UNROLL for (int j = 0; j < NV; ++j) acc[i][j] = load(o + i * ldo + j * kLanes);
  }
  for (int b = 0; b < blocks; ++b) {
    const typename E::T* v = reinterpret_cast<const typename E::T*>(pages[b]) +
                             head_dim * kBlockSize + column * E::kStep;
    OCTAVO_NO_UNROLL for (int t = 0; t < kBlockSize / E::kStep; ++t) {
      typename E::B value[NV];
      OCTAVO_UNROLL for (int j = 0; j < NV; ++j) {
        value[j] = E::load(v + (t * head_dim + j * kLanes) * E::kStep);
      }
      OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
        const typename E::B x = E::broadcast(p + i * kScoreLd + b * kBlockSize + t * E::kStep);
        OCTAVO_UNROLL for (int j = 0; j < NV; ++j) acc[i][j] = E::dot(acc[i][j], x, value[j]);
      }
    }
  }
  OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
    OCTAVO_UNROLL for (int j = 0; j < NV; ++j) store(o + i * ldo + j * kLanes, acc[i][j]);
  }
}

// The same over tokens [begin, end) of a chunk, for one row.
template <class E>
void value_edge(const typename E::T* p, const char* const* pages, int begin, int end, int head_dim,
                float* o) {
  for (int t = begin / E::kStep; t * E::kStep < end; ++t) {
    const int token = t * E::kStep;
    const typename E::T* v = reinterpret_cast<const typename E::T*>(pages[token / kBlockSize]) +
                             head_dim * kBlockSize +
                             token % kBlockSize / E::kStep * head_dim * E::kStep;
    const typename E::B x = E::broadcast(p + token);
    for (int j = 0; j < head_dim; j += kLanes) {
      typename E::B value = E::load(v + j * E::kStep);
      if constexpr (E::kStep == 2) {
        if (token + 1 >= end) value = E::keep_first(value);
        if (token < begin) value = E::keep_second(value);
      }
      store(o + j, E::dot(load(o + j), x, value));
    }
  }
}

template <class E, int NB>
OCTAVO_INLINE void score_rows(int mr, const typename E::T* q, int ldq, const char* const* pages,
                              int steps, float* s) {
#define OCTAVO_ROWS(n)                                   \
  case n:                                                \
    if constexpr (n <= kScoreRows && NB <= kScoreBlocks) \
      score_tile<E, n, NB>(q, ldq, pages, steps, s);     \
    return;
  switch (mr) {
    OCTAVO_ROWS(1)
    OCTAVO_ROWS(2)
    OCTAVO_ROWS(3)
    OCTAVO_ROWS(4)
    OCTAVO_ROWS(5)
    OCTAVO_ROWS(6)
  }
#undef OCTAVO_ROWS
}

template <class E, int NV>
OCTAVO_INLINE void value_rows(int mr, const typename E::T* p, const char* const* pages, int blocks,
                              int head_dim, int column, float* o, int ldo) {
#define OCTAVO_ROWS(n)                                                  \
  case n:                                                               \
    if constexpr (n <= kValueRows && NV <= kValueVectors)               \
      value_tile<E, n, NV>(p, pages, blocks, head_dim, column, o, ldo); \
    return;
  switch (mr) {
    OCTAVO_ROWS(1)
    OCTAVO_ROWS(2)
    OCTAVO_ROWS(3)
    OCTAVO_ROWS(4)
    OCTAVO_ROWS(5)
    OCTAVO_ROWS(6)
  }
#undef OCTAVO_ROWS
}

// Probabilities of one row in a chunk: p = exp2(score * scale - max) on [begin, end), zero in the
// rest of the vectors they touch. `scale` includes log2(e), and so does the returned max.
template <class E>
OCTAVO_INLINE void softmax_chunk(float* s, typename E::T* p, int begin, int end,
                                 const AttentionArgs& args, float* max, float* sum) {
  const int first = begin / kLanes * kLanes, last = round_up(end, kLanes);
  if (args.soft_cap > 0) {
    const F32 inner = set1(args.scale / args.soft_cap), outer = set1(args.soft_cap);
    for (int j = first; j < last; j += kLanes)
      store(s + j, mul(outer, vtanh(mul(load(s + j), inner))));
  }
  const float infinity = __builtin_inff();
  for (int j = first; j < begin; ++j) s[j] = -infinity;
  for (int j = end; j < last; ++j) s[j] = -infinity;
  const F32 scale = set1(args.soft_cap > 0 ? kLog2E : args.scale * kLog2E);
  F32 top = set1(-3.0e38f);
  for (int j = first; j < last; j += kLanes) {
    const F32 v = mul(load(s + j), scale);
    store(s + j, v);
    top = vmax(v, top);
  }
  *max = reduce_max(top);
  const F32 shift = set1(*max);
  F32 total = set1(0.0f);
  for (int j = first; j < last; j += kLanes) {
    const F32 e = vexp2(sub(load(s + j), shift));
    total = add(total, e);
    E::narrow(p + j, e);
  }
  *sum = reduce_add(total);
}

// Scratch of one thread, and the item it works on.
template <class E>
struct AttentionItem {
  using T = typename E::T;
  static constexpr std::int64_t kScoreBytes = kMaxItemRows * kScoreLd * sizeof(float);

  float* scores;     // [kMaxItemRows][kScoreLd]
  float* out;        // [kMaxItemRows][ld]
  float* chunk_out;  // the same, of one chunk, not yet divided
  T* probabilities;  // [kMaxItemRows][kScoreLd]
  T* q;              // [kMaxItemRows][head_dim]
  int ld;

  int rows, heads;          // rows = tokens * heads, token-major
  int begin[kMaxItemRows];  // range of attended tokens, per token
  int end[kMaxItemRows];
  float max[kMaxItemRows], sum[kMaxItemRows];

  static std::int64_t bytes(int head_dim) {
    const std::int64_t ld = round_up(head_dim, 16);
    return 2 * kScoreBytes + kMaxItemRows * ld * (2 * sizeof(float) + sizeof(float));
  }

  AttentionItem(char* scratch, int head_dim) : ld(round_up(head_dim, 16)) {
    scores = reinterpret_cast<float*>(scratch);
    probabilities = reinterpret_cast<T*>(scratch + kScoreBytes);
    out = reinterpret_cast<float*>(scratch + 2 * kScoreBytes);
    chunk_out = out + kMaxItemRows * ld;
    q = reinterpret_cast<T*>(chunk_out + kMaxItemRows * ld);
  }

  OCTAVO_INLINE int row_begin(int row) const { return begin[row / heads]; }
  OCTAVO_INLINE int row_end(int row) const { return end[row / heads]; }

  void score(const char* const* pages, int blocks, int first_block, int head_dim) {
    for (int b = 0; b < blocks; b += kScoreBlocks) {
      const int nb = blocks - b < kScoreBlocks ? blocks - b : kScoreBlocks;
      for (int i = 0; i < rows; i += kScoreRows) {
        const int mr = rows - i < kScoreRows ? rows - i : kScoreRows;
        float* s = scores + i * kScoreLd + (first_block + b) * kBlockSize;
        const T* x = q + i * head_dim;
        const int steps = head_dim / E::kStep;
        switch (nb) {
          case 1:
            score_rows<E, 1>(mr, x, head_dim, pages + b, steps, s);
            break;
          case 2:
            score_rows<E, 2>(mr, x, head_dim, pages + b, steps, s);
            break;
          case 3:
            score_rows<E, 3>(mr, x, head_dim, pages + b, steps, s);
            break;
          case 4:
            score_rows<E, 4>(mr, x, head_dim, pages + b, steps, s);
            break;
        }
      }
    }
  }

  // chunk_out = p · v over blocks [first, last) of the chunk, for all rows.
  void multiply_blocks(const char* const* pages, int first, int last, int head_dim) {
    const int vectors = (head_dim + kLanes - 1) / kLanes;
    for (int i = 0; i < rows; i += kValueRows) {
      const int mr = rows - i < kValueRows ? rows - i : kValueRows;
      const T* p = probabilities + i * kScoreLd + first * kBlockSize;
      for (int v = 0; v < vectors; v += kValueVectors) {
        const int nv = vectors - v < kValueVectors ? vectors - v : kValueVectors;
        float* o = chunk_out + i * ld + v * kLanes;
        const int column = v * kLanes, blocks = last - first;
        switch (nv) {
          case 1:
            value_rows<E, 1>(mr, p, pages + first, blocks, head_dim, column, o, ld);
            break;
          case 2:
            value_rows<E, 2>(mr, p, pages + first, blocks, head_dim, column, o, ld);
            break;
          case 3:
            value_rows<E, 3>(mr, p, pages + first, blocks, head_dim, column, o, ld);
            break;
          case 4:
            value_rows<E, 4>(mr, p, pages + first, blocks, head_dim, column, o, ld);
            break;
        }
      }
    }
  }

  OCTAVO_INLINE void merge_row(int row, float chunk_max, float chunk_sum, bool first) {
    float* o = out + row * ld;
    const float* c = chunk_out + row * ld;
    if (first) {
      max[row] = chunk_max;
      sum[row] = chunk_sum;
      for (int j = 0; j < ld; j += kLanes) store(o + j, load(c + j));
      return;
    }
    const float top = max[row] > chunk_max ? max[row] : chunk_max;
    const F32 a = vexp2(set1(max[row] - top)), b = vexp2(set1(chunk_max - top));
    alignas(64) float lanes[kLanes];
    store(lanes, fma(set1(sum[row]), a, mul(set1(chunk_sum), b)));
    max[row] = top;
    sum[row] = lanes[0];
    for (int j = 0; j < ld; j += kLanes) {
      store(o + j, fma(load(o + j), a, mul(load(c + j), b)));
    }
  }

  // One chunk: `pages` of its blocks, from the chunk's block 0 on (null where no row needs them).
  void attend_chunk(const AttentionArgs& args, int chunk, const char* const* pages, int first_block,
                    int last_block) {
    const int dim = args.heads.head_dim;
    const int base = chunk * kChunk;
    score(pages + first_block, last_block - first_block, first_block, dim);
    // Blocks that every row attends to as a whole.
    int shared_begin = first_block * kBlockSize, shared_end = last_block * kBlockSize;
    for (int t = 0; t * heads < rows; ++t) {
      const int b = begin[t] - base, e = end[t] - base;
      shared_begin = b > shared_begin ? b : shared_begin;
      shared_end = e < shared_end ? e : shared_end;
    }
    shared_begin = round_up(shared_begin, kBlockSize);
    shared_end = shared_end > 0 ? shared_end / kBlockSize * kBlockSize : 0;
    const bool shared = shared_begin < shared_end;

    float chunk_max[kMaxItemRows], chunk_sum[kMaxItemRows];
    for (int i = 0; i < rows; ++i) {
      int b = row_begin(i) - base, e = row_end(i) - base;
      b = b > 0 ? b : 0;
      e = e < kChunk ? e : kChunk;
      float* o = chunk_out + i * ld;
      for (int j = 0; j < ld; j += kLanes) store(o + j, set1(0.0f));
      if (b >= e) continue;
      T* p = probabilities + i * kScoreLd;
      softmax_chunk<E>(scores + i * kScoreLd, p, b, e, args, &chunk_max[i], &chunk_sum[i]);
      value_edge<E>(p, pages, b, shared ? shared_begin : e, dim, o);
    }
    if (shared) {
      multiply_blocks(pages, shared_begin / kBlockSize, shared_end / kBlockSize, dim);
    }
    for (int i = 0; i < rows; ++i) {
      int b = row_begin(i) - base, e = row_end(i) - base;
      b = b > 0 ? b : 0;
      e = e < kChunk ? e : kChunk;
      if (b >= e) continue;
      T* p = probabilities + i * kScoreLd;
      if (shared) value_edge<E>(p, pages, shared_end, e, dim, chunk_out + i * ld);
      merge_row(i, chunk_max[i], chunk_sum[i], row_begin(i) >= base);
    }
  }
};

// Tokens of one item.
OCTAVO_INLINE int item_tokens(int heads_per_item) {
  const int tokens = kMaxItemRows / heads_per_item;
  return tokens < 8 ? tokens : 8;
}

// Query heads of one item: all of a kv head, or an even share of them.
OCTAVO_INLINE int item_heads(const HeadShape& heads) {
  const int per_kv_head = heads.num_heads / heads.num_kv_heads;
  const int shares = (per_kv_head + 15) / 16;
  return (per_kv_head + shares - 1) / shares;
}

template <class E>
void attend_item(const AttentionArgs& args, const StepView& step, int request, int token,
                 int tokens, int head, int heads, AttentionItem<E>& item) {
  using T = typename E::T;
  const int dim = args.heads.head_dim;
  const GroupView& group = step.groups[args.kv.group];
  const std::int32_t* table = group.block_tables + request * group.table_ld;
  const int kv_head = head / (args.heads.num_heads / args.heads.num_kv_heads);
  const char* base = args.kv.base + kv_head * args.kv.head_bytes;

  item.rows = tokens * heads;
  item.heads = heads;
  int lowest = 0x7fffffff, highest = 0;
  for (int t = 0; t < tokens; ++t) {
    const int end = step.positions[token + t] + 1;
    const int begin = args.window > 0 && end > args.window ? end - args.window : 0;
    item.begin[t] = begin;
    item.end[t] = end;
    lowest = begin < lowest ? begin : lowest;
    highest = end > highest ? end : highest;
    const T* q = row_of<T>(*args.q, token + t) + static_cast<std::int64_t>(head) * dim;
    __builtin_memcpy(item.q + t * heads * dim, q, sizeof(T) * heads * dim);
  }
  for (int chunk = lowest / kChunk; chunk * kChunk < highest; ++chunk) {
    constexpr int kBlocks = kChunk / kBlockSize;
    const int low = lowest - chunk * kChunk, high = highest - chunk * kChunk;
    const int first = low > 0 ? low / kBlockSize : 0;
    const int last = high < kChunk ? (high + kBlockSize - 1) / kBlockSize : kBlocks;
    const char* pages[kBlocks];
    for (int b = first; b < last; ++b) {
      pages[b] = base + table[chunk * kBlocks + b] * args.kv.page_bytes;
    }
    item.attend_chunk(args, chunk, pages, first, last);
  }
  alignas(64) T narrow[kMaxHeadDim + 16];
  for (int i = 0; i < item.rows; ++i) {
    const F32 inverse = set1(1.0f / item.sum[i]);
    for (int j = 0; j < dim; j += kLanes) {
      E::narrow(narrow + j, mul(load(item.out + i * item.ld + j), inverse));
    }
    T* out =
        row_of<T>(*args.out, token + i / heads) + static_cast<std::int64_t>(head + i % heads) * dim;
    __builtin_memcpy(out, narrow, sizeof(T) * dim);
  }
}

// Cost of an item, in tokens read and multiplied, for an even split among threads.
OCTAVO_INLINE std::int64_t item_cost(const AttentionArgs& args, const StepView& step, int token,
                                     int tokens) {
  int highest = 0;
  for (int t = 0; t < tokens; ++t) {
    const int p = step.positions[token + t];
    highest = p > highest ? p : highest;
  }
  int span = highest + 1;
  if (args.window > 0 && span > args.window + tokens) span = args.window + tokens;
  return static_cast<std::int64_t>(span + 32) * (tokens + 2);
}

template <class E>
void attention(const AttentionArgs& args, const Task& task) {
  const StepView& step = *task.step;
  const HeadShape& shape = args.heads;
  const int heads = item_heads(shape), per_kv_head = shape.num_heads / shape.num_kv_heads;
  const int tile = item_tokens(heads);
  AttentionItem<E> item(task.scratch, shape.head_dim);

  std::int64_t total = 0;
  for (int b = 0; b < step.num_requests; ++b) {
    for (int t = step.query_start[b]; t < step.query_start[b + 1]; t += tile) {
      const int left = step.query_start[b + 1] - t;
      total += item_cost(args, step, t, left < tile ? left : tile) * shape.num_heads;
    }
  }
  const std::int64_t begin = total * task.thread / task.num_threads;
  const std::int64_t end = total * (task.thread + 1) / task.num_threads;
  std::int64_t at = 0;
  for (int b = 0; b < step.num_requests && at < end; ++b) {
    for (int t = step.query_start[b]; t < step.query_start[b + 1] && at < end; t += tile) {
      const int left = step.query_start[b + 1] - t;
      const int tokens = left < tile ? left : tile;
      const std::int64_t cost = item_cost(args, step, t, tokens);
      for (int h = 0; h < shape.num_heads;) {
        const int rest = per_kv_head - h % per_kv_head;
        const int n = rest < heads ? rest : heads;
        // An item belongs to the thread in whose range its middle lies.
        const std::int64_t middle = at + cost * n / 2;
        if (middle >= begin && middle < end) attend_item<E>(args, step, b, t, tokens, h, n, item);
        at += cost * n;
        h += n;
      }
      const int width = shape.num_heads * shape.head_dim;
      for (int i = 0; at > begin && at <= end && i < tokens; ++i) {
        typename E::T* out = row_of<typename E::T>(*args.out, t + i);
        for (int j = width; j < round_up(width, kColumnPad); ++j) out[j] = 0;
      }
    }
  }
}

inline std::int64_t attention_scratch(const HeadShape& heads) {
  return AttentionItem<ElemF32>::bytes(heads.head_dim);
}

}  // namespace
}  // namespace octavo
