// x @ weight.T on packed panels: how rows, panels and K are walked. What multiplies a tile is an
// operand policy: gemm_float.inl.h, gemm_quantized.inl.h.
//
// Invariance: every output is ONE chain of operations over ascending k, whatever the number of
// rows, the tile it falls into and the K blocking (partial sums are stored and reloaded exactly).
// So tile shapes are free to choose; they were chosen for speed (measured on 2 Zen 4 cores).
//
// A policy G has
//     G(x, weight)            the rows of a Buffer, and a LinearWeight; depth(): its padded K
//     kMaxRows                rows of a tile
//     kMaxLoneRows            rows of a tile that is the only one; not less
//     kMaxUnblockedK, kBlockK a longer K is walked in blocks of kBlockK where there are many rows
//     row_bytes()             of a row of x
//     panel_at(panel, k)      address of a panel's part from k on
//     tile<MR, kFetch>(at, row, panel, k0, k1, c, ldc, next)
//                             c[MR][32] = (k0 > 0 ? c : start) + rows · panel over [k0, k1), which
//                             lies at `at`; float32 once k1 is all of K. Fetches from `next` on
//                             (Fetch)
//     kLeastUnpackedRows      with so many rows panels are unpacked first (gemm_unpacked.inl.h); 0:
//                             never
#pragma once

#include "kernels/pages_ahead.inl.h"
#include "kernels/split.inl.h"

namespace octavo {
namespace {

constexpr int kMaxRowBlock = 264;  // rows of one pass when K is blocked
constexpr int kLine = 64;

// What a tile fetches into the L2 cache while it goes through its own lines: nothing; every second
// line of what another tile is about to multiply; every line of what it will itself come to; pages
// of the KV cache, a line for every two of its own (PagesAhead).
enum class Fetch { kNone, kNext, kAhead, kPages };

// A lone tile of so many rows reads fast enough by itself. Larger ones fetch 6 KB ahead: 0.84 (at
// 58 GB/s) to 0.96 (at 34 GB/s) of the time at 8 rows of bfloat16; 4 and 8 KB, perhaps because
// their lines fall into the same cache sets, won little or lost (docs/performance.md).
constexpr int kUnfetchedRows = 4;
constexpr int kFetchAhead = 6 << 10;

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
template <class G>
OCTAVO_INLINE int gemm_row_block(int rows, int row_bytes, bool blocked) {
  constexpr int kCacheBytes = 256 << 10;
  int block = blocked ? kMaxRowBlock : kCacheBytes / row_bytes;
  block = block > 256 && !blocked ? 256 : block;
  block = block < G::kMaxRows ? G::kMaxRows : block;
  const int passes = (rows + block - 1) / block;
  const int even = (rows + passes - 1) / passes;
  const int rounded = (even + G::kMaxRows - 1) / G::kMaxRows * G::kMaxRows;
  return rounded < block ? rounded : block;
}

template <class G, Fetch kFetch>
OCTAVO_NOINLINE void gemm_rows(const G& g, const char* at, int mr, int row, int panel, int k0,
                               int k1, float* c, std::int64_t ldc, const char* next) {
  constexpr int kLeast = kFetch == Fetch::kAhead ? kUnfetchedRows + 1 : 1;
  constexpr bool kIsOneOfMany = kFetch == Fetch::kNext || kFetch == Fetch::kPages;
  constexpr int kMost = kIsOneOfMany ? G::kMaxRows : G::kMaxLoneRows;
#define OCTAVO_ROWS(n)                                                  \
  case n:                                                               \
    if constexpr (n >= kLeast && n <= kMost)                            \
      g.template tile<n, kFetch>(at, row, panel, k0, k1, c, ldc, next); \
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

// Rows of the next tile: the last two share theirs, as a tile of one row or two waits for its own
// chains.
template <class G>
OCTAVO_INLINE int gemm_tile_rows(int left) {
  return left >= 2 * G::kMaxRows ? G::kMaxRows : left > G::kMaxRows ? (left + 1) / 2 : left;
}

// Runs `epilogue(row, count, panel, panels, c, ldc)` on finished tiles of `count` rows by a group
// of up to `group` panels. The task's scratch holds gemm_tile_floats(group) floats.
template <class G, class Epilogue>
OCTAVO_INLINE void gemm_as_stored(const G& g, const GemmRange& r, int group, const Task& task,
                                  Epilogue&& epilogue) {
  const int rows = r.row_end - r.row_begin, depth = g.depth();
  if (rows <= 0 || r.panel_begin >= r.panel_end) return;
  const bool lone = rows <= G::kMaxLoneRows;
  const bool blocked = !lone && depth > G::kMaxUnblockedK;
  const int block_k = blocked ? G::kBlockK : depth;
  const int row_block = lone ? rows : gemm_row_block<G>(rows, g.row_bytes(), blocked);
  const std::int64_t ldc = static_cast<std::int64_t>(group) * kPanel;
  float* tile = reinterpret_cast<float*>(task.scratch);
  PagesAhead pages(task);

  for (int m0 = r.row_begin; m0 < r.row_end; m0 += row_block) {
    const int m1 = m0 + row_block < r.row_end ? m0 + row_block : r.row_end;
    for (int p0 = r.panel_begin; p0 < r.panel_end; p0 += group) {
      const int panels = p0 + group < r.panel_end ? group : r.panel_end - p0;
      for (int k0 = 0; k0 < depth; k0 += block_k) {
        const int k1 = k0 + block_k < depth ? k0 + block_k : depth;
        for (int m = m0, pass = 0; m < m1; ++pass) {
          const int mr = lone ? rows : gemm_tile_rows<G>(m1 - m);
          float* c = tile + (blocked ? (m - m0) * ldc : 0);
          for (int p = p0; p < p0 + panels; ++p) {
            float* out = c + (p - p0) * kPanel;
            const char* at = g.panel_at(p, k0);
            // The first two of several row tiles fetch what comes next, a line of two each; others
            // what the next attention reads.
            if (!lone && pass < 2) {
              const char* next = k1 == depth ? g.panel_at(p + group, 0) : g.panel_at(p, k1);
              gemm_rows<G, Fetch::kNext>(g, at, mr, m, p, k0, k1, out, ldc, next + pass * kLine);
            } else if (!lone && !pages.done()) {
              const char* next = pages.take((g.panel_at(p, k1) - at) / 2);
              gemm_rows<G, Fetch::kPages>(g, at, mr, m, p, k0, k1, out, ldc, next);
            } else if (lone && rows > kUnfetchedRows) {
              gemm_rows<G, Fetch::kAhead>(g, at, mr, m, p, k0, k1, out, ldc, at + kFetchAhead);
            } else {
              gemm_rows<G, Fetch::kNone>(g, at, mr, m, p, k0, k1, out, ldc, nullptr);
            }
          }
          if (k1 == depth) epilogue(m, mr, p0, panels, c, ldc);
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
