// x @ weight.T on panels of 4-bit codes with many rows: the first tile of rows unpacks a part of a
// panel for all others. The same sums, so the same bits, as where every tile unpacks for itself.
#pragma once

#include "kernels/gemm.inl.h"

namespace octavo {
namespace {

constexpr int kUnpackedK = 1024;          // of one part; 512: 0.98 of the speed
constexpr int kUnpackedBytes = 40 << 10;  // of one part

// As `gemm_as_stored`; the task's scratch holds kUnpackedBytes behind the tiles.
template <class G, class Epilogue>
OCTAVO_INLINE void gemm_unpacked(const G& g, const GemmRange& r, int group, const Task& task,
                                 Epilogue&& epilogue) {
  using Unpacked = typename G::Unpacked;
  static_assert(Unpacked::kBlockBytes * (kUnpackedK / G::kGroup) <= kUnpackedBytes);
  static_assert(G::kLeastUnpackedRows >= 2 * G::kMaxRows);  // the first tile is a whole one
  const Unpacked unpacked(g.x, g.w);
  const int rows = r.row_end - r.row_begin, depth = g.depth();
  const bool blocked = depth > G::kMaxUnblockedK;
  const int row_block = gemm_row_block<Unpacked>(rows, unpacked.row_bytes(), blocked);
  const std::int64_t ldc = static_cast<std::int64_t>(group) * kPanel;
  float* tile = reinterpret_cast<float*>(task.scratch);
  char* part = task.scratch + gemm_tile_floats(group) * sizeof(float);
  PagesAhead pages(task);

  for (int m0 = r.row_begin; m0 < r.row_end; m0 += row_block) {
    const int m1 = m0 + row_block < r.row_end ? m0 + row_block : r.row_end;
    if (m1 - m0 < G::kMaxRows) {  // the last ones, too few for the tile that unpacks
      return gemm_as_stored(g, {m0, m1, r.panel_begin, r.panel_end}, group, task, epilogue);
    }
    for (int p0 = r.panel_begin; p0 < r.panel_end; p0 += group) {
      const int panels = p0 + group < r.panel_end ? group : r.panel_end - p0;
      for (int p = p0; p < p0 + panels; ++p) {
        for (int k0 = 0; k0 < depth; k0 += kUnpackedK) {
          const int k1 = k0 + kUnpackedK < depth ? k0 + kUnpackedK : depth;
          float* out = tile + (p - p0) * kPanel;
          g.unpack_tile(g.panel_at(p, k0), m0, p, k0, k1, out, ldc, g.panel_at(p, k1), part);
          const std::int64_t part_bytes = (k1 - k0) / G::kGroup * Unpacked::kBlockBytes;
          for (int m = m0 + G::kMaxRows; m < m1;) {
            const int mr = gemm_tile_rows<Unpacked>(m1 - m);
            out = tile + (m - m0) * ldc + (p - p0) * kPanel;
            if (pages.done()) {
              gemm_rows<Unpacked, Fetch::kNone>(unpacked, part, mr, m, p, k0, k1, out, ldc,
                                                nullptr);
            } else {
              const char* next = pages.take(part_bytes / 2);
              gemm_rows<Unpacked, Fetch::kPages>(unpacked, part, mr, m, p, k0, k1, out, ldc, next);
            }
            m += mr;
          }
        }
      }
      for (int m = m0; m < m1;) {
        const int mr = gemm_tile_rows<Unpacked>(m1 - m);
        epilogue(m, mr, p0, panels, tile + (m - m0) * ldc, ldc);
        m += mr;
      }
    }
  }
}

template <class G, class Epilogue>
OCTAVO_INLINE void gemm(const G& g, const GemmRange& r, int group, const Task& task,
                        Epilogue&& epilogue) {
  if constexpr (G::kLeastUnpackedRows > 0) {
    if (r.row_end - r.row_begin >= G::kLeastUnpackedRows) {
      return gemm_unpacked(g, r, group, task, epilogue);
    }
  }
  gemm_as_stored(g, r, group, task, epilogue);
}

}  // namespace
}  // namespace octavo
