// Linear ops: the GEMM with its epilogues.
#pragma once

#include "kernels/gemm.inl.h"

namespace octavo {
namespace {

template <class E>
void linear(const LinearArgs& args, const Task& task) {
  const GemmRange range = gemm_range(task, args.weight->num_panels, 1);
  gemm<E>(*args.x, *args.weight, range, 1, reinterpret_cast<float*>(task.scratch),
          [&](int row, int count, int panel, int, const float* c, std::int64_t ldc) {
            for (int i = 0; i < count; ++i) {
              float* out = row_of<float>(*args.out, row + i) + panel * kPanel;
              if (args.residual) {
                const float* residual = row_of<float>(*args.residual, row + i) + panel * kPanel;
                OCTAVO_UNROLL for (int j = 0; j < kPanel; j += kLanes) {
                  store(out + j, add(load(residual + j), load(c + i * ldc + j)));
                }
              } else {
                OCTAVO_UNROLL for (int j = 0; j < kPanel; j += kLanes) {
                  store(out + j, load(c + i * ldc + j));
                }
              }
            }
          });
}

template <class E, Activation kActivation>
OCTAVO_INLINE void gated_linear_as(const GatedArgs& args, const Task& task) {
  constexpr int kHalf = kPanel / 2;
  const GemmRange range = gemm_range(task, args.weight->num_panels, 1);
  gemm<E>(*args.x, *args.weight, range, 1, reinterpret_cast<float*>(task.scratch),
          [&](int row, int count, int panel, int, const float* c, std::int64_t ldc) {
            for (int i = 0; i < count; ++i) {
              typename E::T* out = row_of<typename E::T>(*args.out, row + i) + panel * kHalf;
              OCTAVO_UNROLL for (int j = 0; j < kHalf; j += kLanes) {
                F32 gate = load(c + i * ldc + j);
                if constexpr (kActivation == Activation::kSilu) gate = silu(gate);
                if constexpr (kActivation == Activation::kGeluTanh) gate = gelu_tanh(gate);
                if constexpr (kActivation == Activation::kGelu) gate = gelu(gate);
                E::narrow(out + j, mul(gate, load(c + i * ldc + kHalf + j)));
              }
            }
          });
}

template <class E>
void gated_linear(const GatedArgs& args, const Task& task) {
  switch (args.activation) {
    case Activation::kSilu:
      return gated_linear_as<E, Activation::kSilu>(args, task);
    case Activation::kGeluTanh:
      return gated_linear_as<E, Activation::kGeluTanh>(args, task);
    case Activation::kGelu:
      return gated_linear_as<E, Activation::kGelu>(args, task);
  }
}

}  // namespace
}  // namespace octavo
