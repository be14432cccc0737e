// The two products of attention on one chunk of keys and values: tiles of rows by blocks, and of
// rows by columns. A row's scores and values are the same in every tile.
#pragma once

#include "kernels/split.inl.h"

namespace octavo {
namespace {

constexpr int kScoreLd = kChunk + 16;
constexpr int kChunkBlocks = kChunk / kBlockSize;
constexpr int kLineBytes = 64;

// Scores of MR rows and NB blocks of keys: s[MR][NB * 16] = q · k. Fetches every second line from
// next[0 … NB) on.
template <class E, int MR, int NB, bool kPrefetch>
OCTAVO_NOINLINE void score_tile(const typename E::T* q, int ldq, const char* const* pages,
                                const char* const* next, int steps, float* s) {
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
    if constexpr (kPrefetch) {
      OCTAVO_UNROLL for (int j = 0; j < NB; ++j) prefetch_l2(next[j] + d * 2 * kLineBytes);
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

// o[MR][NV * kLanes] += p · v over tokens [begin, end) of a chunk. Fetches from next[block] on as
// much as it reads of a block.
template <class E, int MR, int NV, bool kPrefetch>
OCTAVO_NOINLINE void value_tile(const typename E::T* p, const char* const* pages,
                                const char* const* next, int begin, int end, int head_dim,
                                int column, float* o, int ldo) {
  F32 acc[MR][NV];
  OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
    OCTAVO_UNROLL for (int j = 0; j < NV; ++j) acc[i][j] = load(o + i * ldo + j * kLanes);
  }
  for (int block = begin / kBlockSize; block * kBlockSize < end; ++block) {
    const int start = block * kBlockSize;
    const int lo = begin > start ? begin - start : 0;
    const int hi = end - start < kBlockSize ? end - start : kBlockSize;
    const typename E::T* v =
        reinterpret_cast<const typename E::T*>(pages[block]) + head_dim * kBlockSize;
    OCTAVO_NO_UNROLL for (int t = lo / E::kStep; t * E::kStep < hi; ++t) {
      typename E::B value[NV];
      OCTAVO_UNROLL for (int j = 0; j < NV; ++j) {
        const int at = (t * head_dim + column + j * kLanes) * E::kStep;
        value[j] = E::load(v + at);
        if constexpr (kPrefetch) prefetch_l2(next[block] + at * sizeof(typename E::T));
      }
      if constexpr (E::kStep == 2) {
        if (t * 2 + 1 >= hi) {
          OCTAVO_UNROLL for (int j = 0; j < NV; ++j) value[j] = E::keep_first(value[j]);
        }
        if (t * 2 < lo) {
          OCTAVO_UNROLL for (int j = 0; j < NV; ++j) value[j] = E::keep_second(value[j]);
        }
      }
      OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
        const typename E::B x = E::broadcast(p + i * kScoreLd + start + t * E::kStep);
        OCTAVO_UNROLL for (int j = 0; j < NV; ++j) acc[i][j] = E::dot(acc[i][j], x, value[j]);
      }
    }
  }
  OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
    OCTAVO_UNROLL for (int j = 0; j < NV; ++j) store(o + i * ldo + j * kLanes, acc[i][j]);
  }
}

#define OCTAVO_SIX_ROWS(mr, call) \
  switch (mr) {                   \
    case 1:                       \
      return call(1);             \
    case 2:                       \
      return call(2);             \
    case 3:                       \
      return call(3);             \
    case 4:                       \
      return call(4);             \
    case 5:                       \
      return call(5);             \
    case 6:                       \
      return call(6);             \
  }

// Rows of the next tile: the last two share theirs evenly.
OCTAVO_INLINE int tile_rows(int left, int most) {
  return left >= 2 * most ? most : left > most ? (left + 1) / 2 : left;
}

template <class E, int NB, bool kPrefetch>
OCTAVO_INLINE void score_rows(int mr, const typename E::T* q, int ldq, const char* const* pages,
                              const char* const* next, int steps, float* s) {
  if constexpr (NB <= kScoreBlocks) {
#define OCTAVO_CALL(n) \
  score_tile<E, n <= kScoreRows ? n : 1, NB, kPrefetch>(q, ldq, pages, next, steps, s)
    OCTAVO_SIX_ROWS(mr, OCTAVO_CALL)
#undef OCTAVO_CALL
  }
}

template <class E, int NV, bool kPrefetch>
OCTAVO_INLINE void value_rows(int mr, const typename E::T* p, const char* const* pages,
                              const char* const* next, int begin, int end, int head_dim, int column,
                              float* o, int ldo) {
  if constexpr (NV <= kValueVectors) {
#define OCTAVO_CALL(n)                                                                        \
  value_tile<E, n <= kValueRows ? n : 1, NV, kPrefetch>(p, pages, next, begin, end, head_dim, \
                                                        column, o, ldo)
    OCTAVO_SIX_ROWS(mr, OCTAVO_CALL)
#undef OCTAVO_CALL
  }
}

#undef OCTAVO_SIX_ROWS

}  // namespace
}  // namespace octavo
