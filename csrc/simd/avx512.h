// AVX-512 (F, BW, DQ, VL): 16 lanes.
#pragma once

#include <immintrin.h>

#include "simd/common.h"

namespace octavo {
namespace {

using F32 = __m512;
constexpr int kLanes = 16;
constexpr int kTileVectors = 2;        // vectors of a GEMM tile row
constexpr int kNarrowTileVectors = 2;  // the same for one or two rows
constexpr int kScoreRows = 6;          // attention: rows and blocks of a q·k tile
constexpr int kScoreBlocks = 4;
constexpr int kValueRows = 6;  // attention: rows and vectors of a p·v tile
constexpr int kValueVectors = 4;

OCTAVO_INLINE F32 load(const float* p) { return _mm512_loadu_ps(p); }
OCTAVO_INLINE void store(float* p, F32 v) { _mm512_storeu_ps(p, v); }
OCTAVO_INLINE F32 set1(float x) { return _mm512_set1_ps(x); }
OCTAVO_INLINE F32 add(F32 a, F32 b) { return _mm512_add_ps(a, b); }
OCTAVO_INLINE F32 sub(F32 a, F32 b) { return _mm512_sub_ps(a, b); }
OCTAVO_INLINE F32 mul(F32 a, F32 b) { return _mm512_mul_ps(a, b); }
OCTAVO_INLINE F32 div(F32 a, F32 b) { return _mm512_div_ps(a, b); }
OCTAVO_INLINE F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }
OCTAVO_INLINE F32 vmax(F32 a, F32 b) { return _mm512_max_ps(a, b); }
OCTAVO_INLINE F32 vmin(F32 a, F32 b) { return _mm512_min_ps(a, b); }
OCTAVO_INLINE F32 vsqrt(F32 a) { return _mm512_sqrt_ps(a); }
OCTAVO_INLINE F32 round_even(F32 a) { return _mm512_roundscale_ps(a, 0); }
// 2^n for integral n in [-126, 127]; 0 for -127.
OCTAVO_INLINE F32 pow2(F32 n) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
  return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
}
// a > b ? x : y, lane by lane; y where a or b is NaN.
OCTAVO_INLINE F32 select_greater(F32 a, F32 b, F32 x, F32 y) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), y, x);
}
OCTAVO_INLINE float reduce_add(F32 v) { return _mm512_reduce_add_ps(v); }
OCTAVO_INLINE float reduce_max(F32 v) { return _mm512_reduce_max_ps(v); }
// In every lane the largest of the four that it belongs to.
OCTAVO_INLINE F32 quad_max(F32 v) {
  v = _mm512_max_ps(v, _mm512_permute_ps(v, 0xb1));
  return _mm512_max_ps(v, _mm512_permute_ps(v, 0x4e));
}
// One bit per lane: a > b, a >= b.
OCTAVO_INLINE unsigned mask_greater(F32 a, F32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
OCTAVO_INLINE unsigned mask_greater_equal(F32 a, F32 b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
}
// Packs first + lane and x[lane] of the lanes that are set; may write all kLanes. Returns how many.
// (In registers: Zen 4 takes a hundred cycles to compress to memory.)
OCTAVO_INLINE int store_set_lanes(const float* x, int first, unsigned mask, std::int32_t* ids,
                                  float* values) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i all = _mm512_add_epi32(lanes, _mm512_set1_epi32(first));
  const auto set = static_cast<__mmask16>(mask);
  _mm512_storeu_si512(ids, _mm512_maskz_compress_epi32(set, all));
  _mm512_storeu_ps(values, _mm512_maskz_compress_ps(set, load(x)));
  return __builtin_popcount(mask);
}

// Float64 sums, one per lane.
struct LaneSums {
  __m512d low, high;
};
OCTAVO_INLINE LaneSums zero_sums() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
OCTAVO_INLINE void accumulate(LaneSums& sums, F32 v) {
  sums.low = _mm512_add_pd(sums.low, _mm512_cvtps_pd(_mm512_castps512_ps256(v)));
  sums.high = _mm512_add_pd(sums.high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)));
}
OCTAVO_INLINE void store(double* p, const LaneSums& sums) {
  _mm512_storeu_pd(p, sums.low);
  _mm512_storeu_pd(p + 8, sums.high);
}

using I32 = __m512i;
OCTAVO_INLINE I32 set1_i32(std::int32_t x) { return _mm512_set1_epi32(x); }
OCTAVO_INLINE I32 add(I32 a, I32 b) { return _mm512_add_epi32(a, b); }
OCTAVO_INLINE I32 times_256(I32 v) { return _mm512_slli_epi32(v, 8); }
OCTAVO_INLINE F32 to_float(I32 v) { return _mm512_cvtepi32_ps(v); }
OCTAVO_INLINE F32 load_half(const std::uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
OCTAVO_INLINE void store_int8(std::int8_t* p, F32 v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
}
OCTAVO_INLINE __m512i broadcast_4_bytes(const std::int8_t* p) {
  std::int32_t quad;
  __builtin_memcpy(&quad, p, 4);
  return _mm512_set1_epi32(quad);
}

// Products of bytes by 16-bit multiplications: even and odd bytes apart, or, where the codes are
// nibbles, in pairs.
struct DotWidened {
  using Raw = __m512i;
  struct W {
    __m512i even, odd;
  };
  struct W4 {
    __m512i codes;
  };
  using X = W;
  using X4 = W4;
  static constexpr int kTileVectors = 2;
  static constexpr int kMaxRows = 4;
  static constexpr int kMaxLoneRows = kMaxRows;
  static constexpr int kLeastUnpackedRows = 0;

  static OCTAVO_INLINE Raw load_raw(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
  static OCTAVO_INLINE W all(Raw v) {
    return {_mm512_and_si512(v, _mm512_set1_epi16(0xff)), _mm512_srli_epi16(v, 8)};
  }
  static OCTAVO_INLINE W4 low(Raw v) { return {_mm512_and_si512(v, _mm512_set1_epi8(0x0f))}; }
  static OCTAVO_INLINE W4 high(Raw v) {
    return {_mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(0x0f))};
  }
  static OCTAVO_INLINE W4 nibbles(Raw v, int shift) {
    return low(_mm512_srl_epi16(v, _mm_cvtsi32_si128(shift)));
  }
  static OCTAVO_INLINE X4 broadcast4(const std::int8_t* p) { return {broadcast_4_bytes(p)}; }
  static OCTAVO_INLINE X broadcast(const std::int8_t* p) {
    const __m512i v = broadcast_4_bytes(p);
    return {_mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8), _mm512_srai_epi16(v, 8)};
  }
  static OCTAVO_INLINE I32 dot(I32 acc, W w, X x) {
    acc = _mm512_add_epi32(acc, _mm512_madd_epi16(w.even, x.even));
    return _mm512_add_epi32(acc, _mm512_madd_epi16(w.odd, x.odd));
  }
  static OCTAVO_INLINE I32 dot(I32 acc, W4 w, X4 x) {  // pairs are within ±3840
    const __m512i pairs = _mm512_maddubs_epi16(w.codes, x.codes);
    return _mm512_add_epi32(acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
};

// bfloat16 without its instructions: widened to float32 and multiplied with FMA.
struct ElemBf16Widened {
  using T = bf16;
  struct B {
    F32 first, second;
  };
  static constexpr int kStep = 2;
  static constexpr int kMaxRows = 6;
  static constexpr int kMaxUnblockedK = 1536;
  static constexpr int kBlockK = 1024;
  static constexpr DType kDType = DType::kBf16;

  static OCTAVO_INLINE B split(__m512i u) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(u, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32(~0xffff)))};
  }
  static OCTAVO_INLINE B load(const T* p) { return split(_mm512_loadu_si512(p)); }
  static OCTAVO_INLINE B broadcast(const T* p) {
    std::int32_t pair;
    __builtin_memcpy(&pair, p, 4);
    return split(_mm512_set1_epi32(pair));
  }
  static OCTAVO_INLINE F32 dot(F32 acc, B a, B b) {
    return fma(a.second, b.second, fma(a.first, b.first, acc));
  }
  static OCTAVO_INLINE B keep_first(B b) { return {b.first, _mm512_setzero_ps()}; }
  static OCTAVO_INLINE B keep_second(B b) { return {_mm512_setzero_ps(), b.second}; }
  static OCTAVO_INLINE F32 widen(const T* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static OCTAVO_INLINE void narrow(T* p, F32 v) {
    const __m512i u = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    r = _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), u,
                             _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
  }
};

}  // namespace
}  // namespace octavo
