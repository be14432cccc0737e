// bfloat16 by AVX512-BF16 instructions. They take subnormal inputs as zero; both halves of a pair
// are accumulated into float32 in one fixed order.
#pragma once

#include "simd/avx512.h"

namespace octavo {
namespace {

struct ElemBf16Native {
  using T = bf16;
  using B = __m512i;
  static constexpr int kStep = 2;
  static constexpr int kMaxRows = 8;
  static constexpr int kMaxUnblockedK = 1536;
  static constexpr int kBlockK = 1024;
  static constexpr DType kDType = DType::kBf16;

  static OCTAVO_INLINE B load(const T* p) { return _mm512_loadu_si512(p); }
  static OCTAVO_INLINE B broadcast(const T* p) {
    std::int32_t pair;
    __builtin_memcpy(&pair, p, 4);
    return _mm512_set1_epi32(pair);
  }
  static OCTAVO_INLINE F32 dot(F32 acc, B a, B b) {
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
  }
  static OCTAVO_INLINE B keep_first(B b) { return _mm512_and_si512(b, _mm512_set1_epi32(0xffff)); }
  static OCTAVO_INLINE B keep_second(B b) {
    return _mm512_and_si512(b, _mm512_set1_epi32(~0xffff));
  }
  static OCTAVO_INLINE F32 widen(const T* p) { return ElemBf16Widened::widen(p); }
  static OCTAVO_INLINE void narrow(T* p, F32 v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(v));
  }
};

}  // namespace
}  // namespace octavo
