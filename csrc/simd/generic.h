// Any target: 4 lanes of the compiler's own vectors. Without a fused multiply-add; contraction is
// off, so that the order of roundings is the one written here.
#pragma once

#include "simd/common.h"

namespace octavo {
namespace {

typedef float F32 __attribute__((vector_size(16)));
typedef std::int32_t I32x4 __attribute__((vector_size(16)));
typedef std::uint32_t U32x4 __attribute__((vector_size(16)));
constexpr int kLanes = 4;
constexpr int kTileVectors = 2;
constexpr int kNarrowTileVectors = 2;
constexpr int kScoreRows = 2;
constexpr int kScoreBlocks = 1;
constexpr int kValueRows = 2;
constexpr int kValueVectors = 2;

OCTAVO_INLINE F32 load(const float* p) {
  F32 v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
OCTAVO_INLINE void store(float* p, F32 v) { __builtin_memcpy(p, &v, sizeof v); }
OCTAVO_INLINE F32 set1(float x) { return F32{x, x, x, x}; }
OCTAVO_INLINE F32 add(F32 a, F32 b) { return a + b; }
OCTAVO_INLINE F32 sub(F32 a, F32 b) { return a - b; }
OCTAVO_INLINE F32 mul(F32 a, F32 b) { return a * b; }
OCTAVO_INLINE F32 div(F32 a, F32 b) { return a / b; }
OCTAVO_INLINE F32 fma(F32 a, F32 b, F32 c) { return a * b + c; }
OCTAVO_INLINE F32 vmax(F32 a, F32 b) { return a > b ? a : b; }
OCTAVO_INLINE F32 vmin(F32 a, F32 b) { return a < b ? a : b; }
OCTAVO_INLINE F32 vsqrt(F32 a) {
  return F32{__builtin_sqrtf(a[0]), __builtin_sqrtf(a[1]), __builtin_sqrtf(a[2]),
             __builtin_sqrtf(a[3])};
}
// Exact for |a| < 2^22: adding and taking away 1.5 * 2^23 leaves the nearest integer.
OCTAVO_INLINE F32 round_even(F32 a) {
  const F32 magic = set1(12582912.0f);
  return (a + magic) - magic;
}
OCTAVO_INLINE F32 pow2(F32 n) {
  const I32x4 biased = __builtin_convertvector(n, I32x4) + 127;
  return (F32)(biased << 23);
}
OCTAVO_INLINE F32 select_greater(F32 a, F32 b, F32 x, F32 y) { return a > b ? x : y; }
OCTAVO_INLINE float reduce_add(F32 v) { return (v[0] + v[2]) + (v[1] + v[3]); }
OCTAVO_INLINE float reduce_max(F32 v) {
  const float a = v[0] > v[2] ? v[0] : v[2];
  const float b = v[1] > v[3] ? v[1] : v[3];
  return a > b ? a : b;
}
OCTAVO_INLINE F32 quad_max(F32 v) { return set1(reduce_max(v)); }
OCTAVO_INLINE unsigned mask_greater(F32 a, F32 b) {
  unsigned mask = 0;
  for (int i = 0; i < kLanes; ++i) mask |= static_cast<unsigned>(a[i] > b[i]) << i;
  return mask;
}
OCTAVO_INLINE unsigned mask_greater_equal(F32 a, F32 b) {
  unsigned mask = 0;
  for (int i = 0; i < kLanes; ++i) mask |= static_cast<unsigned>(a[i] >= b[i]) << i;
  return mask;
}

OCTAVO_INLINE int store_set_lanes(const float* x, int first, unsigned mask, std::int32_t* ids,
                                  float* values) {
  return store_set_lanes_one_by_one(x, first, mask, ids, values);
}

typedef double F64x2 __attribute__((vector_size(16)));
struct LaneSums {
  F64x2 low, high;
};
OCTAVO_INLINE LaneSums zero_sums() { return {F64x2{0, 0}, F64x2{0, 0}}; }
OCTAVO_INLINE void accumulate(LaneSums& sums, F32 v) {
  sums.low += F64x2{v[0], v[1]};
  sums.high += F64x2{v[2], v[3]};
}
OCTAVO_INLINE void store(double* p, const LaneSums& sums) {
  __builtin_memcpy(p, &sums.low, sizeof sums.low);
  __builtin_memcpy(p + 2, &sums.high, sizeof sums.high);
}

using I32 = I32x4;
OCTAVO_INLINE I32 set1_i32(std::int32_t x) { return I32{x, x, x, x}; }
OCTAVO_INLINE I32 add(I32 a, I32 b) { return a + b; }
OCTAVO_INLINE I32 times_256(I32 v) { return v * 256; }
OCTAVO_INLINE F32 to_float(I32 v) { return __builtin_convertvector(v, F32); }
OCTAVO_INLINE F32 load_half(const std::uint16_t* p) {
  return F32{half_to_float(p[0]), half_to_float(p[1]), half_to_float(p[2]), half_to_float(p[3])};
}
OCTAVO_INLINE void store_int8(std::int8_t* p, F32 v) {
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<std::int8_t>(static_cast<int>(v[i]));
}

// Products of bytes one by one, in unsigned arithmetic: it wraps.
struct DotWidened {
  struct Raw {
    std::uint8_t code[4 * kLanes];
  };
  using W = Raw;
  using W4 = W;
  struct X {
    std::int8_t code[4];
  };
  using X4 = X;
  static constexpr int kTileVectors = 1;
  static constexpr int kMaxRows = 1;
  static constexpr int kMaxLoneRows = kMaxRows;
  static constexpr int kLeastUnpackedRows = 0;

  static OCTAVO_INLINE Raw load_raw(const std::uint8_t* p) {
    Raw v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  static OCTAVO_INLINE W all(Raw v) { return v; }
  static OCTAVO_INLINE W4 low(Raw v) {
    for (std::uint8_t& code : v.code) code &= 15;
    return v;
  }
  static OCTAVO_INLINE W4 high(Raw v) {
    for (std::uint8_t& code : v.code) code >>= 4;
    return v;
  }
  static OCTAVO_INLINE W4 nibbles(Raw v, int shift) { return shift ? high(v) : low(v); }
  static OCTAVO_INLINE X broadcast(const std::int8_t* p) { return {{p[0], p[1], p[2], p[3]}}; }
  static OCTAVO_INLINE X4 broadcast4(const std::int8_t* p) { return broadcast(p); }
  static OCTAVO_INLINE I32 dot(I32 acc, const W& w, const X& x) {
    U32x4 sum = (U32x4)acc;
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int i = 0; i < 4; ++i) {
        sum[lane] += static_cast<std::uint32_t>(w.code[4 * lane + i] * x.code[i]);
      }
    }
    return (I32)sum;
  }
};

struct ElemBf16Widened {
  using T = bf16;
  struct B {
    F32 first, second;
  };
  static constexpr int kStep = 2;
  static constexpr int kMaxRows = 2;
  static constexpr int kMaxUnblockedK = 1536;
  static constexpr int kBlockK = 1024;
  static constexpr DType kDType = DType::kBf16;

  static OCTAVO_INLINE B split(U32x4 u) { return {(F32)(u << 16), (F32)(u & 0xffff0000u)}; }
  static OCTAVO_INLINE B load(const T* p) {
    U32x4 u;
    __builtin_memcpy(&u, p, sizeof u);
    return split(u);
  }
  static OCTAVO_INLINE B broadcast(const T* p) {
    std::uint32_t pair;
    __builtin_memcpy(&pair, p, 4);
    return split(U32x4{pair, pair, pair, pair});
  }
  static OCTAVO_INLINE F32 dot(F32 acc, B a, B b) {
    return fma(a.second, b.second, fma(a.first, b.first, acc));
  }
  static OCTAVO_INLINE B keep_first(B b) { return {b.first, set1(0.0f)}; }
  static OCTAVO_INLINE B keep_second(B b) { return {set1(0.0f), b.second}; }
  static OCTAVO_INLINE F32 widen(const T* p) {
    const U32x4 u{p[0], p[1], p[2], p[3]};
    return (F32)(u << 16);
  }
  static OCTAVO_INLINE void narrow(T* p, F32 v) {
    const U32x4 u = (U32x4)v;
    const U32x4 rounded = u + 0x7fffu + ((u >> 16) & 1u);
    const U32x4 quiet = u | 0x400000u;
    const U32x4 r = (v == v ? rounded : quiet) >> 16;
    for (int i = 0; i < kLanes; ++i) p[i] = static_cast<T>(r[i]);
  }
};

}  // namespace
}  // namespace octavo
