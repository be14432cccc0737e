// AVX2 and FMA: 8 lanes.
#pragma once

#include <immintrin.h>

#include "simd/common.h"

namespace octavo {
namespace {

using F32 = __m256;
constexpr int kLanes = 8;
constexpr int kTileVectors = 2;
constexpr int kNarrowTileVectors = 4;
constexpr int kScoreRows = 4;
constexpr int kScoreBlocks = 1;
constexpr int kValueRows = 4;
constexpr int kValueVectors = 2;

OCTAVO_INLINE F32 load(const float* p) { return _mm256_loadu_ps(p); }
OCTAVO_INLINE void store(float* p, F32 v) { _mm256_storeu_ps(p, v); }
OCTAVO_INLINE F32 set1(float x) { return _mm256_set1_ps(x); }
OCTAVO_INLINE F32 add(F32 a, F32 b) { return _mm256_add_ps(a, b); }
OCTAVO_INLINE F32 sub(F32 a, F32 b) { return _mm256_sub_ps(a, b); }
OCTAVO_INLINE F32 mul(F32 a, F32 b) { return _mm256_mul_ps(a, b); }
OCTAVO_INLINE F32 div(F32 a, F32 b) { return _mm256_div_ps(a, b); }
OCTAVO_INLINE F32 fma(F32 a, F32 b, F32 c) { return _mm256_fmadd_ps(a, b, c); }
OCTAVO_INLINE F32 vmax(F32 a, F32 b) { return _mm256_max_ps(a, b); }
OCTAVO_INLINE F32 vmin(F32 a, F32 b) { return _mm256_min_ps(a, b); }
OCTAVO_INLINE F32 vsqrt(F32 a) { return _mm256_sqrt_ps(a); }
OCTAVO_INLINE F32 round_even(F32 a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
OCTAVO_INLINE F32 pow2(F32 n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
OCTAVO_INLINE F32 select_greater(F32 a, F32 b, F32 x, F32 y) {
  return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
OCTAVO_INLINE float reduce_add(F32 v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
OCTAVO_INLINE float reduce_max(F32 v) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}
OCTAVO_INLINE F32 quad_max(F32 v) {
  v = _mm256_max_ps(v, _mm256_permute_ps(v, 0xb1));
  return _mm256_max_ps(v, _mm256_permute_ps(v, 0x4e));
}
OCTAVO_INLINE unsigned mask_greater(F32 a, F32 b) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)));
}
OCTAVO_INLINE unsigned mask_greater_equal(F32 a, F32 b) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)));
}
OCTAVO_INLINE int store_set_lanes(const float* x, int first, unsigned mask, std::int32_t* ids,
                                  float* values) {
  return store_set_lanes_one_by_one(x, first, mask, ids, values);
}

struct LaneSums {
  __m256d low, high;
};
OCTAVO_INLINE LaneSums zero_sums() { return {_mm256_setzero_pd(), _mm256_setzero_pd()}; }
OCTAVO_INLINE void accumulate(LaneSums& sums, F32 v) {
  sums.low = _mm256_add_pd(sums.low, _mm256_cvtps_pd(_mm256_castps256_ps128(v)));
  sums.high = _mm256_add_pd(sums.high, _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)));
}
OCTAVO_INLINE void store(double* p, const LaneSums& sums) {
  _mm256_storeu_pd(p, sums.low);
  _mm256_storeu_pd(p + 4, sums.high);
}

using I32 = __m256i;
OCTAVO_INLINE I32 set1_i32(std::int32_t x) { return _mm256_set1_epi32(x); }
OCTAVO_INLINE I32 add(I32 a, I32 b) { return _mm256_add_epi32(a, b); }
OCTAVO_INLINE I32 times_256(I32 v) { return _mm256_slli_epi32(v, 8); }
OCTAVO_INLINE F32 to_float(I32 v) { return _mm256_cvtepi32_ps(v); }
OCTAVO_INLINE F32 load_half(const std::uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
OCTAVO_INLINE void store_int8(std::int8_t* p, F32 v) {
  const __m256i i = _mm256_and_si256(_mm256_cvtps_epi32(v), _mm256_set1_epi32(0xff));
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
}

// Products of bytes by 16-bit multiplications, even and odd bytes apart: vpmaddubsw would saturate.
// It does not where the codes are nibbles.
struct DotWidened {
  using Raw = __m256i;
  struct W {
    __m256i even, odd;
  };
  struct W4 {
    __m256i codes;
  };
  using X = W;
  using X4 = W4;
  static constexpr int kTileVectors = 2;
  static constexpr int kMaxRows = 4;
  static constexpr int kMaxLoneRows = kMaxRows;
  static constexpr int kLeastUnpackedRows = 0;

  static OCTAVO_INLINE Raw load_raw(const std::uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static OCTAVO_INLINE W all(Raw v) {
    return {_mm256_and_si256(v, _mm256_set1_epi16(0xff)), _mm256_srli_epi16(v, 8)};
  }
  static OCTAVO_INLINE W4 low(Raw v) { return {_mm256_and_si256(v, _mm256_set1_epi8(0x0f))}; }
  static OCTAVO_INLINE W4 high(Raw v) {
    return {_mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(0x0f))};
  }
  static OCTAVO_INLINE W4 nibbles(Raw v, int shift) {
    return low(_mm256_srl_epi16(v, _mm_cvtsi32_si128(shift)));
  }
  static OCTAVO_INLINE X4 broadcast4(const std::int8_t* p) {
    std::int32_t quad;
    __builtin_memcpy(&quad, p, 4);
    return {_mm256_set1_epi32(quad)};
  }
  static OCTAVO_INLINE X broadcast(const std::int8_t* p) {
    const __m256i v = broadcast4(p).codes;
    return {_mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8), _mm256_srai_epi16(v, 8)};
  }
  static OCTAVO_INLINE I32 dot(I32 acc, W w, X x) {
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(w.even, x.even));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(w.odd, x.odd));
  }
  static OCTAVO_INLINE I32 dot(I32 acc, W4 w, X4 x) {  // pairs are within ±3840
    const __m256i pairs = _mm256_maddubs_epi16(w.codes, x.codes);
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};

struct ElemBf16Widened {
  using T = bf16;
  struct B {
    F32 first, second;
  };
  static constexpr int kStep = 2;
  static constexpr int kMaxRows = 4;
  static constexpr int kMaxUnblockedK = 1536;
  static constexpr int kBlockK = 1024;
  static constexpr DType kDType = DType::kBf16;

  static OCTAVO_INLINE B split(__m256i u) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(u, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(u, _mm256_set1_epi32(~0xffff)))};
  }
  static OCTAVO_INLINE B load(const T* p) {
    return split(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static OCTAVO_INLINE B broadcast(const T* p) {
    std::int32_t pair;
    __builtin_memcpy(&pair, p, 4);
    return split(_mm256_set1_epi32(pair));
  }
  static OCTAVO_INLINE F32 dot(F32 acc, B a, B b) {
    return fma(a.second, b.second, fma(a.first, b.first, acc));
  }
  static OCTAVO_INLINE B keep_first(B b) { return {b.first, _mm256_setzero_ps()}; }
  static OCTAVO_INLINE B keep_second(B b) { return {_mm256_setzero_ps(), b.second}; }
  static OCTAVO_INLINE F32 widen(const T* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static OCTAVO_INLINE void narrow(T* p, F32 v) {
    const __m256i u = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i r = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
  }
};

}  // namespace
}  // namespace octavo
