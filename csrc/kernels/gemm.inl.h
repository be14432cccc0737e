// x @ weight.T on packed panels.
//
// Invariance: every output is ONE chain of multiply-adds over ascending k, whatever the number of
// rows, the tile it falls into and the K blocking (partial sums are stored and reloaded exactly).
// So tile shapes are free to choose; they were chosen for speed (measured on 2 Zen 4 cores).
#pragma once

#include "kernels/split.inl.h"

namespace octavo {
namespace {

constexpr int kMaxRowBlock = 264;  // rows of one pass when K is blocked
constexpr int kPanelStepBytes = 128;

// c[MR][NV * kLanes] = (first ? bias or 0 : c) + a[MR][steps * kStep] · b. `b` points at the first
// column of the tile inside a panel; `next` is prefetched one line per step.
template <class E, int MR, int NV, bool kPrefetch>
OCTAVO_INLINE void gemm_tile(const typename E::T* a, std::int64_t lda, const typename E::T* b,
                             int steps, float* c, std::int64_t ldc, const float* bias, bool first,
                             const char* next) {
  F32 acc[MR][NV];
  OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
    OCTAVO_UNROLL for (int j = 0; j < NV; ++j) {
      if (!first) {
        acc[i][j] = load(c + i * ldc + j * kLanes);
      } else {
        acc[i][j] = bias ? load(bias + j * kLanes) : set1(0.0f);
      }
    }
  }
  const typename E::T* rows[MR];
  OCTAVO_UNROLL for (int i = 0; i < MR; ++i) rows[i] = a + i * lda;
  OCTAVO_NO_UNROLL for (int k = 0; k < steps; ++k) {
    typename E::B panel[NV];
    OCTAVO_UNROLL for (int j = 0; j < NV; ++j) {
      panel[j] = E::load(b + (static_cast<std::int64_t>(k) * kPanel + j * kLanes) * E::kStep);
    }
    if (kPrefetch) prefetch_l2(next + static_cast<std::int64_t>(k) * kPanelStepBytes);
    OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
      const typename E::B x = E::broadcast(rows[i] + k * E::kStep);
      OCTAVO_UNROLL for (int j = 0; j < NV; ++j) acc[i][j] = E::dot(acc[i][j], x, panel[j]);
    }
  }
  OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
    OCTAVO_UNROLL for (int j = 0; j < NV; ++j) store(c + i * ldc + j * kLanes, acc[i][j]);
  }
}

// MR rows by a whole panel.
template <class E, int MR, bool kPrefetch>
OCTAVO_NOINLINE void gemm_panel(const typename E::T* a, std::int64_t lda, const typename E::T* b,
                                int steps, float* c, std::int64_t ldc, const float* bias,
                                bool first, const char* next) {
  constexpr int NV = MR <= 2 ? kNarrowTileVectors : kTileVectors;
  constexpr int kWidth = NV * kLanes;
  gemm_tile<E, MR, NV, kPrefetch>(a, lda, b, steps, c, ldc, bias, first, next);
  OCTAVO_NO_UNROLL for (int j = kWidth; j < kPanel; j += kWidth) {
    gemm_tile<E, MR, NV, false>(a, lda, b + j * E::kStep, steps, c + j, ldc,
                                bias ? bias + j : nullptr, first, next);
  }
}

template <class E, bool kPrefetch>
void gemm_rows(int mr, const typename E::T* a, std::int64_t lda, const typename E::T* b, int steps,
               float* c, std::int64_t ldc, const float* bias, bool first, const char* next) {
#define OCTAVO_ROWS(n)                                                          \
  case n:                                                                       \
    if constexpr (n <= E::kMaxRows)                                             \
      gemm_panel<E, n, kPrefetch>(a, lda, b, steps, c, ldc, bias, first, next); \
    return;
  switch (mr) {
    OCTAVO_ROWS(1)
    OCTAVO_ROWS(2)
    OCTAVO_ROWS(3)
    OCTAVO_ROWS(4)
    OCTAVO_ROWS(5)
    OCTAVO_ROWS(6)
    OCTAVO_ROWS(7)
    OCTAVO_ROWS(8)
  }
#undef OCTAVO_ROWS
}

// A thread's part of an output: rows and panels.
struct GemmRange {
  int row_begin, row_end, panel_begin, panel_end;
};

OCTAVO_INLINE GemmRange gemm_range(const Task& task, int num_panels, int group) {
  GemmRange r{0, task.rows, 0, num_panels};
  if (task.by_rows) {
    split(task.rows, kRowGranule, task, &r.row_begin, &r.row_end);
  } else {
    split(num_panels, group, task, &r.panel_begin, &r.panel_end);
  }
  return r;
}

// Rows of one pass over the panels: they stay in the L2 cache.
template <class E>
OCTAVO_INLINE int gemm_row_block(int rows, int k, bool blocked) {
  constexpr int kCacheBytes = 256 << 10;
  int block = blocked ? kMaxRowBlock : kCacheBytes / (k * static_cast<int>(sizeof(typename E::T)));
  block = block > 256 && !blocked ? 256 : block;
  block = block < E::kMaxRows ? E::kMaxRows : block;
  const int passes = (rows + block - 1) / block;
  const int even = (rows + passes - 1) / passes;
  const int rounded = (even + E::kMaxRows - 1) / E::kMaxRows * E::kMaxRows;
  return rounded < block ? rounded : block;
}

// Runs `epilogue(row, count, panel, panels, c, ldc)` on finished tiles of `count` rows by a group
// of up to `group` panels. `tile` holds gemm_tile_floats(group) floats.
template <class E, class Epilogue>
OCTAVO_INLINE void gemm(const Buffer& x, const LinearWeight& w, const GemmRange& r, int group,
                        float* tile, Epilogue&& epilogue) {
  using T = typename E::T;
  const T* a = static_cast<const T*>(x.data);
  const std::int64_t lda = x.ld;
  const std::int64_t panel_elems = static_cast<std::int64_t>(w.k_padded) * kPanel;
  const int rows = r.row_end - r.row_begin;
  if (rows <= 0 || r.panel_begin >= r.panel_end) return;
  const bool blocked = rows > E::kMaxRows && w.k_padded > E::kMaxUnblockedK;
  const int block_k = blocked ? E::kBlockK : w.k_padded;
  const int row_block = gemm_row_block<E>(rows, w.k_padded, blocked);
  const std::int64_t ldc = static_cast<std::int64_t>(group) * kPanel;

  for (int m0 = r.row_begin; m0 < r.row_end; m0 += row_block) {
    const int m1 = m0 + row_block < r.row_end ? m0 + row_block : r.row_end;
    for (int p0 = r.panel_begin; p0 < r.panel_end; p0 += group) {
      const int panels = p0 + group < r.panel_end ? group : r.panel_end - p0;
      for (int k0 = 0; k0 < w.k_padded; k0 += block_k) {
        const int k1 = k0 + block_k < w.k_padded ? k0 + block_k : w.k_padded;
        const bool last = k1 == w.k_padded;
        for (int m = m0, pass = 0; m < m1; ++pass) {
          // The last two tiles share their rows: a tile of one row or two waits for its own chains.
          const int left = m1 - m;
          const int mr = left >= 2 * E::kMaxRows ? E::kMaxRows
                         : left > E::kMaxRows    ? (left + 1) / 2
                                                 : left;
          float* c = tile + (blocked ? (m - m0) * ldc : 0);
          for (int p = 0; p < panels; ++p) {
            const T* b = static_cast<const T*>(w.panels) + (p0 + p) * panel_elems +
                         static_cast<std::int64_t>(k0) * kPanel;
            const float* bias = w.bias ? w.bias + (p0 + p) * kPanel : nullptr;
            const T* start = a + m * lda + k0;
            const int steps = (k1 - k0) / E::kStep;
            // The first two row tiles of a panel fetch what comes next into L2, a line each per
            // step.
            if (rows > E::kMaxRows && pass < 2) {
              const T* next = last
                                  ? b + group * panel_elems - static_cast<std::int64_t>(k0) * kPanel
                                  : b + static_cast<std::int64_t>(block_k) * kPanel;
              gemm_rows<E, true>(mr, start, lda, b, steps, c + p * kPanel, ldc, bias, k0 == 0,
                                 reinterpret_cast<const char*>(next) + pass * 64);
            } else {
              gemm_rows<E, false>(mr, start, lda, b, steps, c + p * kPanel, ldc, bias, k0 == 0,
                                  nullptr);
            }
          }
          if (last) epilogue(m, mr, p0, panels, c, ldc);
          m += mr;
        }
      }
    }
  }
}

OCTAVO_INLINE std::int64_t gemm_tile_floats(int group) {
  return static_cast<std::int64_t>(kMaxRowBlock) * group * kPanel;
}

}  // namespace
}  // namespace octavo
