// Linear ops: the GEMM with its epilogues. G multiplies (gemm.inl.h), E is the element type of
// activations that come out.
#pragma once

#include "kernels/gemm_unpacked.inl.h"

namespace octavo {
namespace {

template <class G>
void linear(const LinearArgs& args, const Task& task) {
  const GemmRange range = gemm_range(task, args.weight->num_panels, 1);
  gemm(G(*args.x, *args.weight), range, 1, task,
       [&](int row, int count, int panel, int, const float* c, std::int64_t ldc) {
         for (int i = 0; i < count; ++i) {
           float* out = row_of<float>(*args.out, row + i) + panel * kPanel;
           if (args.residual) {
             const float* residual = row_of<float>(*args.residual, row + i) + panel * kPanel;
             // The next tile's: a large step's rows lie in memory further off than L2.
             const float* next = residual + count * args.residual->ld;
             OCTAVO_UNROLL for (int j = 0; j < kPanel; j += kLanes) {
               prefetch_l1(next + j);
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

OCTAVO_INLINE F32 activate(Activation activation, F32 x) {
  switch (activation) {
    case Activation::kGeluTanh:
      return gelu_tanh(x);
    case Activation::kGelu:
      return gelu(x);
    default:
      return silu(x);
  }
}

template <class G, class E>
void gated_linear(const GatedArgs& args, const Task& task) {
  constexpr int kHalf = kPanel / 2;
  const GemmRange range = gemm_range(task, args.weight->num_panels, 1);
  gemm(G(*args.x, *args.weight), range, 1, task,
       [&](int row, int count, int panel, int, const float* c, std::int64_t ldc) {
         for (int i = 0; i < count; ++i) {
           typename E::T* out = row_of<typename E::T>(*args.out, row + i) + panel * kHalf;
           OCTAVO_UNROLL for (int j = 0; j < kHalf; j += kLanes) {
             const F32 gate = activate(args.activation, load(c + i * ldc + j));
             E::narrow(out + j, mul(gate, load(c + i * ldc + kHalf + j)));
           }
         }
       });
}

}  // namespace
}  // namespace octavo
