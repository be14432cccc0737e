// The element policy of float32; after an interface header.
#pragma once

namespace octavo {
namespace {

struct ElemF32 {
  using T = float;
  using B = F32;
  static constexpr int kStep = 1;
  static constexpr int kMaxRows = kLanes == 16 ? 8 : kLanes == 8 ? 6 : 4;
  static constexpr int kMaxUnblockedK = 768;
  static constexpr int kBlockK = 512;
  static constexpr DType kDType = DType::kF32;

  static OCTAVO_INLINE B load(const T* p) { return octavo::load(p); }
  static OCTAVO_INLINE B broadcast(const T* p) { return set1(*p); }
  static OCTAVO_INLINE F32 dot(F32 acc, B a, B b) { return fma(a, b, acc); }
  static OCTAVO_INLINE F32 widen(const T* p) { return octavo::load(p); }
  static OCTAVO_INLINE void narrow(T* p, F32 v) { store(p, v); }
};

}  // namespace
}  // namespace octavo
