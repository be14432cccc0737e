// NEON of AArch64: 4 lanes. All of it belongs to the base architecture.
#pragma once

#include <arm_neon.h>

#include "simd/common.h"

namespace octavo {
namespace {

using F32 = float32x4_t;
constexpr int kLanes = 4;
constexpr int kTileVectors = 4;
constexpr int kNarrowTileVectors = 8;
constexpr int kScoreRows = 4;
constexpr int kScoreBlocks = 1;
constexpr int kValueRows = 4;
constexpr int kValueVectors = 4;

OCTAVO_INLINE F32 load(const float* p) { return vld1q_f32(p); }
OCTAVO_INLINE void store(float* p, F32 v) { vst1q_f32(p, v); }
OCTAVO_INLINE F32 set1(float x) { return vdupq_n_f32(x); }
OCTAVO_INLINE F32 add(F32 a, F32 b) { return vaddq_f32(a, b); }
OCTAVO_INLINE F32 sub(F32 a, F32 b) { return vsubq_f32(a, b); }
OCTAVO_INLINE F32 mul(F32 a, F32 b) { return vmulq_f32(a, b); }
OCTAVO_INLINE F32 div(F32 a, F32 b) { return vdivq_f32(a, b); }
OCTAVO_INLINE F32 fma(F32 a, F32 b, F32 c) { return vfmaq_f32(c, a, b); }
OCTAVO_INLINE F32 vmax(F32 a, F32 b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
OCTAVO_INLINE F32 vmin(F32 a, F32 b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
OCTAVO_INLINE F32 vsqrt(F32 a) { return vsqrtq_f32(a); }
OCTAVO_INLINE F32 round_even(F32 a) { return vrndnq_f32(a); }
OCTAVO_INLINE F32 pow2(F32 n) {
  const int32x4_t biased = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
  return vreinterpretq_f32_s32(vshlq_n_s32(biased, 23));
}
OCTAVO_INLINE F32 select_greater(F32 a, F32 b, F32 x, F32 y) {
  return vbslq_f32(vcgtq_f32(a, b), x, y);
}
OCTAVO_INLINE float reduce_add(F32 v) {
  const float32x2_t s = vadd_f32(vget_low_f32(v), vget_high_f32(v));
  return vget_lane_f32(s, 0) + vget_lane_f32(s, 1);
}
OCTAVO_INLINE float reduce_max(F32 v) { return vmaxvq_f32(v); }
OCTAVO_INLINE F32 quad_max(F32 v) { return vdupq_n_f32(vmaxvq_f32(v)); }
OCTAVO_INLINE unsigned lane_bits(uint32x4_t mask) {
  const uint32x4_t weights = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(mask, weights));
}
OCTAVO_INLINE unsigned mask_greater(F32 a, F32 b) { return lane_bits(vcgtq_f32(a, b)); }
OCTAVO_INLINE unsigned mask_greater_equal(F32 a, F32 b) { return lane_bits(vcgeq_f32(a, b)); }
OCTAVO_INLINE int store_set_lanes(const float* x, int first, unsigned mask, std::int32_t* ids,
                                  float* values) {
  return store_set_lanes_one_by_one(x, first, mask, ids, values);
}

struct LaneSums {
  float64x2_t low, high;
};
OCTAVO_INLINE LaneSums zero_sums() { return {vdupq_n_f64(0.0), vdupq_n_f64(0.0)}; }
OCTAVO_INLINE void accumulate(LaneSums& sums, F32 v) {
  sums.low = vaddq_f64(sums.low, vcvt_f64_f32(vget_low_f32(v)));
  sums.high = vaddq_f64(sums.high, vcvt_high_f64_f32(v));
}
OCTAVO_INLINE void store(double* p, const LaneSums& sums) {
  vst1q_f64(p, sums.low);
  vst1q_f64(p + 2, sums.high);
}

using I32 = int32x4_t;
OCTAVO_INLINE I32 set1_i32(std::int32_t x) { return vdupq_n_s32(x); }
OCTAVO_INLINE I32 add(I32 a, I32 b) { return vaddq_s32(a, b); }
OCTAVO_INLINE I32 times_256(I32 v) { return vshlq_n_s32(v, 8); }
OCTAVO_INLINE F32 to_float(I32 v) { return vcvtq_f32_s32(v); }
OCTAVO_INLINE F32 load_half(const std::uint16_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
OCTAVO_INLINE void store_int8(std::int8_t* p, F32 v) {
  const int16x4_t words = vmovn_s32(vcvtq_s32_f32(v));
  const int8x8_t bytes = vmovn_s16(vcombine_s16(words, words));
  vst1_lane_s32(reinterpret_cast<std::int32_t*>(p), vreinterpret_s32_s8(bytes), 0);
}

// Products of bytes in 16 bits, which 255 * -128 fits.
struct DotWidened {
  using Raw = uint8x16_t;
  using W = uint8x16_t;
  using W4 = W;
  using X = int16x8_t;
  using X4 = X;
  static constexpr int kTileVectors = 4;
  static constexpr int kMaxRows = 2;
  static constexpr int kMaxLoneRows = kMaxRows;
  static constexpr int kLeastUnpackedRows = 0;

  static OCTAVO_INLINE Raw load_raw(const std::uint8_t* p) { return vld1q_u8(p); }
  static OCTAVO_INLINE W all(Raw v) { return v; }
  static OCTAVO_INLINE W4 low(Raw v) { return vandq_u8(v, vdupq_n_u8(15)); }
  static OCTAVO_INLINE W4 high(Raw v) { return vshrq_n_u8(v, 4); }
  static OCTAVO_INLINE W4 nibbles(Raw v, int shift) { return shift ? high(v) : low(v); }
  static OCTAVO_INLINE X broadcast(const std::int8_t* p) {
    std::int32_t quad;
    __builtin_memcpy(&quad, p, 4);
    return vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(quad)));
  }
  static OCTAVO_INLINE int32x4_t pairs(uint8x8_t w, X x) {
    return vpaddlq_s16(vmulq_s16(vreinterpretq_s16_u16(vmovl_u8(w)), x));
  }
  static OCTAVO_INLINE X4 broadcast4(const std::int8_t* p) { return broadcast(p); }
  static OCTAVO_INLINE I32 dot(I32 acc, W w, X x) {
    return vaddq_s32(acc, vpaddq_s32(pairs(vget_low_u8(w), x), pairs(vget_high_u8(w), x)));
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

  static OCTAVO_INLINE B split(uint32x4_t u) {
    return {vreinterpretq_f32_u32(vshlq_n_u32(u, 16)),
            vreinterpretq_f32_u32(vandq_u32(u, vdupq_n_u32(0xffff0000u)))};
  }
  static OCTAVO_INLINE B load(const T* p) { return split(vreinterpretq_u32_u16(vld1q_u16(p))); }
  static OCTAVO_INLINE B broadcast(const T* p) {
    std::uint32_t pair;
    __builtin_memcpy(&pair, p, 4);
    return split(vdupq_n_u32(pair));
  }
  static OCTAVO_INLINE F32 dot(F32 acc, B a, B b) {
    return fma(a.second, b.second, fma(a.first, b.first, acc));
  }
  static OCTAVO_INLINE B keep_first(B b) { return {b.first, vdupq_n_f32(0.0f)}; }
  static OCTAVO_INLINE B keep_second(B b) { return {vdupq_n_f32(0.0f), b.second}; }
  static OCTAVO_INLINE F32 widen(const T* p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
  }
  static OCTAVO_INLINE void narrow(T* p, F32 v) {
    const uint32x4_t u = vreinterpretq_u32_f32(v);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(u, vdupq_n_u32(0x400000));
    vst1_u16(p, vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), rounded, quiet), 16));
  }
};

}  // namespace
}  // namespace octavo
