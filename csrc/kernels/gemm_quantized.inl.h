// GEMM operands of quantized weights: int8 activations (QuantizeArgs) by codes of weights, summed
// as integers. The zero point of the codes is the start value of a sum.
#pragma once

#include "kernels/gemm.inl.h"

namespace octavo {
namespace {

// The parts of a row of quantized activations; see QuantizeArgs.
struct QuantizedRow {
  const std::int8_t* codes;
  const float* scales;
  const float* corrections;  // int32 or float32
};

OCTAVO_INLINE QuantizedRow quantized_row(const Buffer& x, std::int64_t row, int k_padded,
                                         int groups) {
  const std::int8_t* codes = static_cast<const std::int8_t*>(x.data) + row * x.ld * 4;
  const float* scales = reinterpret_cast<const float*>(codes + k_padded);
  return {codes, scales, scales + groups};
}

// The operand policy (gemm.inl.h) of a quantized format. The integer sum of a group is scaled and
// added to a float32 chain over ascending groups, which starts from the bias; one scale per output
// is applied at the end, and the bias after it.
template <class D, WeightFormat kFormat>
struct QuantizedGemm {
  static constexpr WeightTraits kTraits = kWeightTraits[static_cast<int>(kFormat)];
  static constexpr int kGroup = kTraits.group;
  static constexpr bool kScaleApart = kTraits.scale_bytes == 0;
  static constexpr int kCodeBytes = kGroup * kPanel * kTraits.bits / 8;
  static constexpr int kBlockBytes =
      kCodeBytes + kPanel * kTraits.scale_bytes * (kTraits.has_min ? 2 : 1);
  static constexpr int kMaxRows = D::kMaxRows;
  static constexpr int kMaxUnblockedK = 2048;
  static constexpr int kBlockK = 2048;
  static_assert(kBlockK % kGroup == 0 && kBlockBytes % kLine == 0);

  const Buffer& x;
  const LinearWeight& w;

  QuantizedGemm(const Buffer& x, const LinearWeight& w) : x(x), w(w) {}

  OCTAVO_INLINE int depth() const { return w.k_padded; }
  OCTAVO_INLINE int row_bytes() const { return w.k_padded + w.k_padded / kGroup * 8; }
  OCTAVO_INLINE const char* panel_at(int panel, int k) const {
    return static_cast<const char*>(w.panels) + panel * w.panel_bytes +
           static_cast<std::int64_t>(k / kGroup) * kBlockBytes;
  }

  template <int MR, bool kPrefetch>
  OCTAVO_NOINLINE void tile(int row, int panel, int k0, int k1, float* c, std::int64_t ldc,
                            const char* next) const {
    constexpr int kWidth = D::kTileVectors * kLanes;
    columns<MR, kPrefetch>(row, panel, 0, k0, k1, c, ldc, next);
    OCTAVO_NO_UNROLL for (int j = kWidth; j < kPanel; j += kWidth) {
      columns<MR, false>(row, panel, j, k0, k1, c, ldc, next);
    }
  }

 private:
  static OCTAVO_INLINE F32 load_scale(const char* p, int column) {
    if constexpr (kTraits.scale_bytes == 2) {
      return load_half(reinterpret_cast<const std::uint16_t*>(p) + column);
    } else {
      return load(reinterpret_cast<const float*>(p) + column);
    }
  }

  template <int MR, bool kPrefetch>
  OCTAVO_INLINE void columns(int row, int panel, int column, int k0, int k1, float* c,
                             std::int64_t ldc, const char* next) const {
    constexpr int NV = D::kTileVectors;
    const int groups = w.k_padded / kGroup;
    const std::int64_t ldx = x.ld * 4;
    const QuantizedRow r = quantized_row(x, row, w.k_padded, groups);
    const char* block = panel_at(panel, k0);
    F32 f[MR][NV];
    OCTAVO_UNROLL for (int j = 0; j < NV; ++j) {
      const std::int64_t first = static_cast<std::int64_t>(panel) * kPanel + column + j * kLanes;
      const F32 start = !kScaleApart && w.bias ? load(w.bias + first) : set1(0.0f);
      OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
        f[i][j] = k0 == 0 ? start : load(c + i * ldc + column + j * kLanes);
      }
    }
    OCTAVO_NO_UNROLL for (int g = k0 / kGroup; g < k1 / kGroup; ++g, block += kBlockBytes) {
      const auto* b = reinterpret_cast<const std::uint8_t*>(block) + column * 4;
      const std::int8_t* a = r.codes + g * kGroup;
      I32 acc[MR][NV];
      OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
        std::int32_t start = 0;
        if (!kTraits.has_min) {
          const char* correction = reinterpret_cast<const char*>(r.corrections + g) + i * ldx;
          __builtin_memcpy(&start, correction, 4);
        }
        OCTAVO_UNROLL for (int j = 0; j < NV; ++j) acc[i][j] = set1_i32(start);
      }
      OCTAVO_UNROLL for (int q = 0; q < kCodeBytes / (4 * kPanel); ++q) {
        typename D::Raw raw[NV];
        OCTAVO_UNROLL for (int j = 0; j < NV; ++j) {
          raw[j] = D::load_raw(b + q * 4 * kPanel + j * kLanes * 4);
        }
        if (kPrefetch) prefetch_l2(next + q * 2 * kLine);
        if constexpr (kTraits.bits == 8) {
          OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
            const typename D::X four = D::broadcast(a + i * ldx + q * 4);
            OCTAVO_UNROLL for (int j = 0; j < NV; ++j) {
              acc[i][j] = D::dot(acc[i][j], D::all(raw[j]), four);
            }
          }
        } else {
          typename D::W low[NV], high[NV];
          OCTAVO_UNROLL for (int j = 0; j < NV; ++j) {
            low[j] = D::low(raw[j]);
            high[j] = D::high(raw[j]);
          }
          OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
            const typename D::X first = D::broadcast(a + i * ldx + q * 4);
            const typename D::X second = D::broadcast(a + i * ldx + q * 4 + kGroup / 2);
            OCTAVO_UNROLL for (int j = 0; j < NV; ++j) {
              acc[i][j] = D::dot(D::dot(acc[i][j], low[j], first), high[j], second);
            }
          }
        }
      }
      if (kPrefetch) {
        OCTAVO_UNROLL for (int at = kCodeBytes; at < kBlockBytes; at += 2 * kLine) {
          prefetch_l2(next + at);
        }
        next += kBlockBytes;
      }
      const char* scales = block + kCodeBytes;
      OCTAVO_UNROLL for (int j = 0; j < NV; ++j) {
        const int at = column + j * kLanes;
        const F32 scale = kScaleApart ? set1(1.0f) : load_scale(scales, at);
        OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
          const char* row_scales = reinterpret_cast<const char*>(r.scales + g) + i * ldx;
          float row_scale;
          __builtin_memcpy(&row_scale, row_scales, 4);
          const F32 x_scale = set1(row_scale);
          f[i][j] = fma(to_float(acc[i][j]), kScaleApart ? x_scale : mul(scale, x_scale), f[i][j]);
        }
        if constexpr (kTraits.has_min) {
          const F32 min = load_scale(scales + kPanel * kTraits.scale_bytes, at);
          OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
            const char* corrections = reinterpret_cast<const char*>(r.corrections + g) + i * ldx;
            float correction;
            __builtin_memcpy(&correction, corrections, 4);
            f[i][j] = fma(min, set1(correction), f[i][j]);
          }
        }
      }
    }
    if (kScaleApart && k1 == w.k_padded) {
      OCTAVO_UNROLL for (int j = 0; j < NV; ++j) {
        const std::int64_t first = static_cast<std::int64_t>(panel) * kPanel + column + j * kLanes;
        const F32 scale = load(w.scales + first);
        const F32 bias = w.bias ? load(w.bias + first) : set1(0.0f);
        OCTAVO_UNROLL for (int i = 0; i < MR; ++i) f[i][j] = add(mul(f[i][j], scale), bias);
      }
    }
    OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
      OCTAVO_UNROLL for (int j = 0; j < NV; ++j) {
        store(c + i * ldc + column + j * kLanes, f[i][j]);
      }
    }
  }
};

}  // namespace
}  // namespace octavo
