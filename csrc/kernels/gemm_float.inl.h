// GEMM operands of float32 and bfloat16.
#pragma once

#include "kernels/gemm.inl.h"

namespace octavo {
namespace {

// c[MR][NV * kLanes] = (first ? bias or 0 : c) + a[MR][steps * kStep] · b. `b` points at the first
// column of the tile inside a panel.
template <class E, int MR, int NV, Fetch kFetch>
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
    if constexpr (kFetch != Fetch::kNone) {
      constexpr int kStepBytes = kPanel * E::kStep * static_cast<int>(sizeof(typename E::T));
      static_assert(kStepBytes == 2 * kLine);
      constexpr int kStride = kFetch == Fetch::kPages ? kLine : kStepBytes;
      prefetch_l2(next + static_cast<std::int64_t>(k) * kStride);
      if (kFetch == Fetch::kAhead) prefetch_l2(next + k * kStepBytes + kLine);
    }
    OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
      const typename E::B x = E::broadcast(rows[i] + k * E::kStep);
      OCTAVO_UNROLL for (int j = 0; j < NV; ++j) acc[i][j] = E::dot(acc[i][j], x, panel[j]);
    }
  }
  OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
    OCTAVO_UNROLL for (int j = 0; j < NV; ++j) store(c + i * ldc + j * kLanes, acc[i][j]);
  }
}

// The operand policy (gemm.inl.h) of an element type.
template <class E>
struct FloatGemm {
  using T = typename E::T;
  static constexpr int kMaxRows = E::kMaxRows;
  static constexpr int kMaxLoneRows = E::kMaxRows;
  static constexpr int kMaxUnblockedK = E::kMaxUnblockedK;
  static constexpr int kBlockK = E::kBlockK;
  static constexpr int kLeastUnpackedRows = 0;

  const Buffer& x;
  const LinearWeight& w;

  FloatGemm(const Buffer& x, const LinearWeight& w) : x(x), w(w) {}

  OCTAVO_INLINE int depth() const { return w.k_padded; }
  OCTAVO_INLINE int row_bytes() const { return w.k_padded * static_cast<int>(sizeof(T)); }
  OCTAVO_INLINE const char* panel_at(int panel, int k) const {
    return static_cast<const char*>(w.panels) + panel * w.panel_bytes +
           static_cast<std::int64_t>(k) * kPanel * static_cast<int>(sizeof(T));
  }

  template <int MR, Fetch kFetch>
  OCTAVO_NOINLINE void tile(const char* at, int row, int panel, int k0, int k1, float* c,
                            std::int64_t ldc, const char* next) const {
    constexpr int NV = MR <= 2 ? kNarrowTileVectors : kTileVectors;
    constexpr int kWidth = NV * kLanes;
    const T* a = static_cast<const T*>(x.data) + row * x.ld + k0;
    const T* b = reinterpret_cast<const T*>(at);
    const float* bias = w.bias ? w.bias + panel * kPanel : nullptr;
    const int steps = (k1 - k0) / E::kStep;
    gemm_tile<E, MR, NV, kFetch>(a, x.ld, b, steps, c, ldc, bias, k0 == 0, next);
    OCTAVO_NO_UNROLL for (int j = kWidth; j < kPanel; j += kWidth) {
      gemm_tile<E, MR, NV, Fetch::kNone>(a, x.ld, b + j * E::kStep, steps, c + j, ldc,
                                         bias ? bias + j : nullptr, k0 == 0, next);
    }
  }
};

}  // namespace
}  // namespace octavo
