// What every vector interface shares. An ISA unit includes one interface, then kernels/*.inl.h; all
// of it lives in anonymous namespaces, so that no symbol compiled for one ISA can serve another.
//
// The interface: `F32`, a vector of kLanes floats, with load, store, set1, add, sub, mul, div, fma,
// vmax, vmin, vsqrt, round_even, pow2, select_greater, reduce_add, reduce_max, quad_max,
// mask_greater, mask_greater_equal, store_set_lanes; `LaneSums`, kLanes float64 sums, with
// zero_sums, accumulate, store; and an element policy for bfloat16 beside `ElemF32` below. A policy
// has
//     T, kStep            stored type; consecutive k that one 32-bit lane holds
//     B                   kLanes lanes of kStep elements
//     load, broadcast     B from memory: kLanes * kStep elements; kStep elements to all lanes
//     dot                 acc + a * b, over kStep ascending k
//     keep_first/second   B with the other half of each lane zeroed (kStep 2 only)
//     widen, narrow       kLanes elements to and from F32 (round to nearest even)
//     kMaxRows            rows of a GEMM tile; kMaxUnblockedK, kBlockK: see gemm.inl.h
//
// For quantized weights: `I32`, kLanes int32, with set1_i32, add, times_256, to_float; load_half
// (kLanes float16 to F32), store_int8 (the low bytes of integral values); and a policy of the
// products, equal on every ISA:
//     Raw                 kLanes columns of 4 bytes of weights, by load_raw
//     W                   kLanes columns of 4 codes: all bytes of a Raw
//     W4                  the same of its low or high nibbles: by low, high, or nibbles(Raw, 0 or
//                         4), which shifts right first
//     X, X4               4 int8 activations in all lanes, to go with W and with W4: by broadcast
//                         and broadcast4
//     dot                 acc + the sum over the 4 of w * x; wraps, never saturates
//     kTileVectors        vectors of a tile row; kMaxRows, kMaxLoneRows, kLeastUnpackedRows: see
//                         gemm.inl.h
//     store_codes         a W4 as bytes, where kLeastUnpackedRows is not 0
#pragma once

#include <cstddef>
#include <cstdint>

#include "api/kernel_table.h"

#define OCTAVO_INLINE inline __attribute__((always_inline))
#define OCTAVO_NOINLINE __attribute__((noinline))
#if defined(__clang__)
#define OCTAVO_UNROLL _Pragma("clang loop unroll(full)")
#define OCTAVO_NO_UNROLL _Pragma("clang loop unroll(disable)")
#else
#define OCTAVO_UNROLL _Pragma("GCC unroll 32")
#define OCTAVO_NO_UNROLL _Pragma("GCC unroll 1")
#endif

namespace octavo {
namespace {

OCTAVO_INLINE std::uint32_t float_bits(float x) {
  std::uint32_t u;
  __builtin_memcpy(&u, &x, 4);
  return u;
}

OCTAVO_INLINE float bits_float(std::uint32_t u) {
  float x;
  __builtin_memcpy(&x, &u, 4);
  return x;
}

// Where there is no faster way: what mask_greater says, as the lanes that are set. See avx512.h.
OCTAVO_INLINE int store_set_lanes_one_by_one(const float* x, int first, unsigned mask,
                                             std::int32_t* ids, float* values) {
  int count = 0;
  for (; mask; mask &= mask - 1) {
    const int lane = __builtin_ctz(mask);
    ids[count] = first + lane;
    values[count++] = x[lane];
  }
  return count;
}

OCTAVO_INLINE float half_to_float(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  const std::uint32_t exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24 is exact
    const float f = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    return sign ? -f : f;
  }
  const std::uint32_t high = exponent == 31 ? 0x7f800000u : (exponent + 112) << 23;
  return bits_float(sign | high | mantissa << 13);
}

OCTAVO_INLINE void prefetch_l1(const void* p) { __builtin_prefetch(p, 0, 3); }
OCTAVO_INLINE void prefetch_l2(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace
}  // namespace octavo
