// GEMM operands of quantized weights: codes of activations (QuantizeArgs) by codes of weights,
// summed as integers. The zero point of the codes is the start value of a sum.
#pragma once

#include "kernels/gemm.inl.h"

namespace octavo {
namespace {

// The parts of a row of quantized activations; see QuantizeArgs.
struct QuantizedRow {
  const std::int8_t* codes;
  const float* scales;
  const float* corrections;  // int32 or float32
  const float* high;         // four int8 each
  const float* quads;        // int32
};

OCTAVO_INLINE QuantizedRow quantized_row(const Buffer& x, std::int64_t row, int k_padded,
                                         int groups) {
  const std::int8_t* codes = static_cast<const std::int8_t*>(x.data) + row * x.ld * 4;
  const float* scales = reinterpret_cast<const float*>(codes + k_padded);
  return {codes, scales, scales + groups, scales + 2 * groups, scales + 3 * groups};
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
  static constexpr int kMaxLoneRows = kScaleApart ? D::kMaxLoneRows : kMaxRows;
  static constexpr int kMaxUnblockedK = 2048;
  static constexpr int kBlockK = 2048;
  static constexpr int kLeastUnpackedRows = kTraits.bits == 4 ? D::kLeastUnpackedRows : 0;
  static_assert(kBlockK % kGroup == 0 && kBlockBytes % kLine == 0);

  // What 4-bit panels are unpacked into: the same codes and scales.
  using Unpacked =
      QuantizedGemm<D, kTraits.has_min ? WeightFormat::kInt8G32Min : WeightFormat::kInt8G32>;

  const Buffer& x;
  const LinearWeight& w;

  QuantizedGemm(const Buffer& x, const LinearWeight& w) : x(x), w(w) {}

  OCTAVO_INLINE int depth() const { return w.k_padded; }
  OCTAVO_INLINE int row_bytes() const {
    return w.k_padded + w.k_padded / kGroup * (kTraits.has_outlier ? 16 : 8);
  }
  OCTAVO_INLINE const char* panel_at(int panel, int k) const {
    return static_cast<const char*>(w.panels) + panel * w.panel_bytes +
           static_cast<std::int64_t>(k / kGroup) * kBlockBytes;
  }

  template <int MR, Fetch kFetch>
  OCTAVO_NOINLINE void tile(const char* at, int row, int panel, int k0, int k1, float* c,
                            std::int64_t ldc, const char* next) const {
    constexpr int kWidth = D::kTileVectors * kLanes;
    columns<MR, kFetch>(at, row, panel, 0, k0, k1, c, ldc, next);
    OCTAVO_NO_UNROLL for (int j = kWidth; j < kPanel; j += kWidth) {
      columns<MR, Fetch::kNone>(at, row, panel, j, k0, k1, c, ldc, next);
    }
  }

  // A tile of kMaxRows rows that leaves its part of the panel at `unpacked`, and fetches as much
  // from `next` on.
  OCTAVO_NOINLINE void unpack_tile(const char* at, int row, int panel, int k0, int k1, float* c,
                                   std::int64_t ldc, const char* next, char* unpacked) const {
    static_assert(D::kTileVectors * kLanes == kPanel);
    columns<kMaxRows, Fetch::kAhead, true>(at, row, panel, 0, k0, k1, c, ldc, next, unpacked);
  }

 private:
  static constexpr int NV = D::kTileVectors;
  static constexpr int kQuadBytes = 4 * kPanel;

  template <class T>
  static OCTAVO_INLINE T read(const float* p, std::int64_t bytes) {
    T value;
    __builtin_memcpy(&value, reinterpret_cast<const char*>(p) + bytes, sizeof value);
    return value;
  }

  static OCTAVO_INLINE F32 load_scale(const char* p, int column) {
    if constexpr (kTraits.scale_bytes == 2) {
      return load_half(reinterpret_cast<const std::uint16_t*>(p) + column);
    } else {
      return load(reinterpret_cast<const float*>(p) + column);
    }
  }

  // Bytes of its own for a byte that a tile goes on by where it fetches.
  template <Fetch kFetch>
  static constexpr int kOwnPerFetched = kFetch == Fetch::kPages ? 2 : 1;

  template <Fetch kFetch>
  static OCTAVO_INLINE void fetch(const char* next, int at) {
    static_assert(kQuadBytes == 2 * kLine);
    if (kFetch != Fetch::kNone) prefetch_l2(next + at / kOwnPerFetched<kFetch>);
    if (kFetch == Fetch::kAhead) prefetch_l2(next + at + kLine);
  }

  // acc += four (4-bit codes: two times four) K of the weights at `b` by those of the rows at `a`.
  // kUnpack: leaves the codes at `to`.
  template <int MR, bool kUnpack>
  static OCTAVO_INLINE void add_quad(I32 (&acc)[MR][NV], const std::uint8_t* b,
                                     const std::int8_t* a, std::int64_t ldx, char* to) {
    if constexpr (kTraits.bits == 8) {
      typename D::W codes[NV];
      OCTAVO_UNROLL for (int j = 0; j < NV; ++j) {
        codes[j] = D::all(D::load_raw(b + j * kLanes * 4));
      }
      OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
        const typename D::X x = D::broadcast(a + i * ldx);
        OCTAVO_UNROLL for (int j = 0; j < NV; ++j) acc[i][j] = D::dot(acc[i][j], codes[j], x);
      }
    } else {
      typename D::W4 low[NV], high[NV];
      OCTAVO_UNROLL for (int j = 0; j < NV; ++j) {
        const typename D::Raw raw = D::load_raw(b + j * kLanes * 4);
        low[j] = D::low(raw);
        high[j] = D::high(raw);
        if constexpr (kUnpack) {
          D::store_codes(to + j * kLanes * 4, low[j]);
          D::store_codes(to + kCodeBytes + j * kLanes * 4, high[j]);
        }
      }
      OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
        const typename D::X4 first = D::broadcast4(a + i * ldx);
        const typename D::X4 second = D::broadcast4(a + i * ldx + kGroup / 2);
        OCTAVO_UNROLL for (int j = 0; j < NV; ++j) {
          acc[i][j] = D::dot(D::dot(acc[i][j], low[j], first), high[j], second);
        }
      }
    }
  }

  // The start of a group's sums: 256 times the products of its outliers' high bytes with the
  // weights of their quad.
  static OCTAVO_INLINE void start_with_outlier(I32 (&acc)[NV], std::int32_t start,
                                               const std::uint8_t* b, const float* high,
                                               std::uint32_t quad) {
    const auto* x = reinterpret_cast<const std::int8_t*>(high);
    constexpr std::uint32_t kStored = kCodeBytes / kQuadBytes;  // 4-bit codes: each two quads
    const std::uint8_t* at = b + quad % kStored * kQuadBytes;
    OCTAVO_UNROLL for (int j = 0; j < NV; ++j) {
      const typename D::Raw raw = D::load_raw(at + j * kLanes * 4);
      I32 sum = set1_i32(0);
      if constexpr (kTraits.bits == 8) {
        sum = D::dot(sum, D::all(raw), D::broadcast(x));
      } else {
        sum = D::dot(sum, D::nibbles(raw, static_cast<int>(quad / kStored * 4)), D::broadcast4(x));
      }
      acc[j] = add(set1_i32(start), times_256(sum));
    }
  }

  // The integer sums of group g.
  template <int MR, Fetch kFetch, bool kUnpack>
  static OCTAVO_INLINE void sum_group(I32 (&acc)[MR][NV], const std::uint8_t* b,
                                      const QuantizedRow& r, int g, std::int64_t ldx,
                                      const char* next, char* unpacked) {
    OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
      const std::int32_t start =
          kTraits.has_min ? 0 : read<std::int32_t>(r.corrections + g, i * ldx);
      if constexpr (kTraits.has_outlier) {
        const std::int64_t at = i * ldx;
        const auto quad = read<std::uint32_t>(r.quads + g, at);
        start_with_outlier(acc[i], start, b, r.high + g + at / 4, quad);
      } else {
        OCTAVO_UNROLL for (int j = 0; j < NV; ++j) acc[i][j] = set1_i32(start);
      }
    }
    const std::int8_t* a = r.codes + static_cast<std::int64_t>(g) * kGroup;
    constexpr int kQuads = kCodeBytes / kQuadBytes, kUnroll = 4;  // all at once: -40 % on AVX2
    OCTAVO_NO_UNROLL for (int q = 0; q < kQuads; q += kUnroll) {
      OCTAVO_UNROLL for (int u = 0; u < kUnroll; ++u) {
        fetch<kFetch>(next, (q + u) * kQuadBytes);
        const int at = (q + u) * kQuadBytes;
        add_quad<MR, kUnpack>(acc, b + at, a + (q + u) * 4, ldx, kUnpack ? unpacked + at : nullptr);
      }
    }
    OCTAVO_UNROLL for (int at = kCodeBytes; at < kBlockBytes; at += kQuadBytes) {
      fetch<kFetch>(next, at);
    }
  }

  // A group's scales and minima behind its codes at `unpacked`.
  static OCTAVO_INLINE void unpack_scales(const char* scales, char* unpacked) {
    char* to = unpacked + Unpacked::kCodeBytes;
    if constexpr (Unpacked::kTraits.scale_bytes == kTraits.scale_bytes) {
      __builtin_memcpy(to, scales, kBlockBytes - kCodeBytes);
    } else {
      static_assert(Unpacked::kTraits.scale_bytes == sizeof(float) && kTraits.has_min);
      float* floats = reinterpret_cast<float*>(to);
      OCTAVO_UNROLL for (int j = 0; j < 2 * kPanel; j += kLanes) {
        store(floats + j, load_scale(scales, j));
      }
    }
  }

  // f += acc, scaled, and the minima of group g.
  template <int MR>
  static OCTAVO_INLINE void add_group(F32 (&f)[MR][NV], const I32 (&acc)[MR][NV],
                                      const char* scales, int column, const QuantizedRow& r, int g,
                                      std::int64_t ldx) {
    OCTAVO_UNROLL for (int j = 0; j < NV; ++j) {
      const int at = column + j * kLanes;
      const F32 scale = kScaleApart ? set1(1.0f) : load_scale(scales, at);
      OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
        const F32 row_scale = set1(read<float>(r.scales + g, i * ldx));
        const F32 product = kScaleApart ? row_scale : mul(scale, row_scale);
        f[i][j] = fma(to_float(acc[i][j]), product, f[i][j]);
      }
      if constexpr (kTraits.has_min) {
        const F32 min = load_scale(scales + kPanel * kTraits.scale_bytes, at);
        OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
          f[i][j] = fma(min, set1(read<float>(r.corrections + g, i * ldx)), f[i][j]);
        }
      }
    }
  }

  template <int MR, Fetch kFetch, bool kUnpack = false>
  OCTAVO_INLINE void columns(const char* block, int row, int panel, int column, int k0, int k1,
                             float* c, std::int64_t ldc, const char* next,
                             char* unpacked = nullptr) const {
    const std::int64_t ldx = x.ld * 4, first = static_cast<std::int64_t>(panel) * kPanel + column;
    const QuantizedRow r = quantized_row(x, row, w.k_padded, w.k_padded / kGroup);
    F32 f[MR][NV];
    OCTAVO_UNROLL for (int j = 0; j < NV; ++j) {
      const F32 start = !kScaleApart && w.bias ? load(w.bias + first + j * kLanes) : set1(0.0f);
      OCTAVO_UNROLL for (int i = 0; i < MR; ++i) {
        f[i][j] = k0 == 0 ? start : load(c + i * ldc + column + j * kLanes);
      }
    }
    OCTAVO_NO_UNROLL for (int g = k0 / kGroup; g < k1 / kGroup; ++g, block += kBlockBytes) {
      const auto* b = reinterpret_cast<const std::uint8_t*>(block) + column * 4;
      I32 acc[MR][NV];
      sum_group<MR, kFetch, kUnpack>(acc, b, r, g, ldx, next, unpacked);
      add_group<MR>(f, acc, block + kCodeBytes, column, r, g, ldx);
      if constexpr (kUnpack) {
        unpack_scales(block + kCodeBytes, unpacked);
        unpacked += Unpacked::kBlockBytes;
      }
      if (kFetch != Fetch::kNone) next += kBlockBytes / kOwnPerFetched<kFetch>;
    }
    if (kScaleApart && k1 == w.k_padded) {
      OCTAVO_UNROLL for (int j = 0; j < NV; ++j) {
        const F32 scale = load(w.scales + first + j * kLanes);
        const F32 bias = w.bias ? load(w.bias + first + j * kLanes) : set1(0.0f);
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
