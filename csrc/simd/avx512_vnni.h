// Products of bytes by AVX512-VNNI: vpdpbusd wraps, and takes four bytes per lane and cycle.
#pragma once

#include "simd/avx512.h"

namespace octavo {
namespace {

struct DotVnni {
  using Raw = __m512i;
  using W = __m512i;
  using W4 = W;
  using X = __m512i;
  using X4 = X;
  static constexpr int kTileVectors = 2;
  static constexpr int kMaxRows = 4;
  static constexpr int kMaxLoneRows = 8;
  static constexpr int kLeastUnpackedRows = 16;

  static OCTAVO_INLINE Raw load_raw(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
  static OCTAVO_INLINE W all(Raw v) { return v; }
  static OCTAVO_INLINE W4 low(Raw v) { return _mm512_and_si512(v, _mm512_set1_epi8(0x0f)); }
  static OCTAVO_INLINE W4 high(Raw v) {
    return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(0x0f));
  }
  static OCTAVO_INLINE void store_codes(char* p, W4 v) { _mm512_storeu_si512(p, v); }
  static OCTAVO_INLINE W4 nibbles(Raw v, int shift) {
    return low(_mm512_srl_epi16(v, _mm_cvtsi32_si128(shift)));
  }
  static OCTAVO_INLINE X broadcast(const std::int8_t* p) { return broadcast_4_bytes(p); }
  static OCTAVO_INLINE X4 broadcast4(const std::int8_t* p) { return broadcast(p); }
  static OCTAVO_INLINE I32 dot(I32 acc, W w, X x) { return _mm512_dpbusd_epi32(acc, w, x); }
};

}  // namespace
}  // namespace octavo
