// Logits of chosen rows, and the best of each row without the others. G multiplies (gemm.inl.h).
#pragma once

#include "kernels/gemm_unpacked.inl.h"

namespace octavo {
namespace {

// Scale and soft cap: the last thing that happens to a logit.
struct LogitScale {
  F32 scale, cap, inverse_cap;
  bool is_capped;

  OCTAVO_INLINE explicit LogitScale(const LogitsArgs& args)
      : scale(set1(args.scale)),
        cap(set1(args.soft_cap)),
        inverse_cap(set1(args.soft_cap > 0 ? 1.0f / args.soft_cap : 0.0f)),
        is_capped(args.soft_cap > 0) {}

  OCTAVO_INLINE F32 apply(F32 x) const {
    const F32 v = mul(x, scale);
    return is_capped ? mul(cap, vtanh(mul(v, inverse_cap))) : v;
  }
};

template <class G>
void logits(const LogitsArgs& args, const Task& task) {
  const LogitScale scale(args);
  const GemmRange range = gemm_range(task, args.weight->num_panels, 1);
  gemm(G(*args.x, *args.weight), range, 1, task,
       [&](int row, int count, int panel, int, const float* c, std::int64_t ldc) {
         for (int i = 0; i < count; ++i) {
           float* out = row_of<float>(*args.out, row + i) + panel * kPanel;
           OCTAVO_UNROLL for (int j = 0; j < kPanel; j += kLanes) {
             store(out + j, scale.apply(load(c + i * ldc + j)));
           }
         }
       });
}

// Of its part of the columns, every thread keeps the best per row. Columns come in rising order, so
// that a later one must be larger; NaN never is.
template <class G>
void argmax(const ArgmaxArgs& args, const Task& task) {
  const LogitScale scale(args.logits);
  const LinearWeight& w = *args.logits.weight;
  float* best = args.partials->values + task.thread * args.partials->ld;
  std::int32_t* ids = args.partials->ids + task.thread * args.partials->ld;
  const GemmRange range = gemm_range(task, w.num_panels, 1);
  for (int row = range.row_begin; row < range.row_end; ++row) {
    best[row] = -__builtin_inff();
    ids[row] = 0;
  }
  gemm(G(*args.logits.x, w), range, 1, task,
       [&](int row, int count, int panel, int, const float* c, std::int64_t ldc) {
         const int columns = w.n - panel * kPanel < kPanel ? w.n - panel * kPanel : kPanel;
         for (int i = row; i < row + count; ++i) {
           alignas(64) float v[kPanel];
           const F32 bound = set1(best[i]);
           unsigned larger = 0;
           OCTAVO_UNROLL for (int j = 0; j < kPanel; j += kLanes) {
             const F32 x = scale.apply(load(c + (i - row) * ldc + j));
             store(v + j, x);
             larger |= mask_greater(x, bound);
           }
           if (!larger) continue;
           for (int j = 0; j < columns; ++j) {
             if (!(v[j] > best[i])) continue;
             best[i] = v[j];
             ids[i] = panel * kPanel + j;
           }
         }
       });
}

// Threads hold rising ranges of columns: of equal values that of the lower thread stays.
inline void argmax_merge(const ArgmaxArgs& args, const Task& task) {
  const ArgmaxPartials& from = *args.partials;
  const int parts = task.by_rows ? 1 : task.num_threads;
  const std::int64_t first = task.by_rows ? task.thread * from.ld : 0;
  int begin, end;
  split_rows(task, &begin, &end);
  for (int row = begin; row < end; ++row) {
    std::int64_t at = first + row;
    for (int t = 1; t < parts; ++t) {
      const std::int64_t other = t * from.ld + row;
      if (from.values[other] > from.values[at]) at = other;
    }
    float* out = row_of<float>(*args.logits.out, row);
    out[0] = static_cast<float>(from.ids[at]);
    out[1] = from.values[at];
  }
}

}  // namespace
}  // namespace octavo
