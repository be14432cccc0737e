// Row-wise ops: norms, embedding.
#pragma once

#include "kernels/split.inl.h"

namespace octavo {
namespace {

// 1 / sqrt(mean(x²) + eps); four chains, combined in one order.
OCTAVO_INLINE F32 inverse_rms(const float* x, int width, float eps) {
  F32 s[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
  const int padded = round_up(width, kLanes);
  int j = 0;
  for (; j + 4 * kLanes <= padded; j += 4 * kLanes) {
    OCTAVO_UNROLL for (int i = 0; i < 4; ++i) {
      const F32 v = load(x + j + i * kLanes);
      s[i] = fma(v, v, s[i]);
    }
  }
  for (int i = 0; j < padded; ++i, j += kLanes) s[i] = fma(load(x + j), load(x + j), s[i]);
  const float sum = reduce_add(add(add(s[0], s[1]), add(s[2], s[3])));
  const F32 mean = set1(sum / static_cast<float>(width) + eps);
  return div(set1(1.0f), vsqrt(mean));
}

template <class E>
void rms_norm(const NormArgs& args, const Task& task) {
  const int padded = round_up(args.width, kColumnPad);
  const F32 offset = set1(args.offset);
  int begin, end;
  split_rows(task, &begin, &end);
  for (int row = begin; row < end; ++row) {
    const float* x = row_of<float>(*args.x, row);
    typename E::T* out = row_of<typename E::T>(*args.out, row);
    const F32 inverse = inverse_rms(x, args.width, args.eps);
    for (int j = 0; j < padded; j += kLanes) {
      E::narrow(out + j, mul(mul(load(x + j), inverse), add(load(args.weight + j), offset)));
    }
  }
}

inline void rms_norm_add(const NormArgs& args, const Task& task) {
  const int padded = round_up(args.width, kColumnPad);
  const F32 offset = set1(args.offset);
  int begin, end;
  split_rows(task, &begin, &end);
  for (int row = begin; row < end; ++row) {
    const float* x = row_of<float>(*args.x, row);
    const float* residual = row_of<float>(*args.residual, row);
    float* out = row_of<float>(*args.out, row);
    const F32 inverse = inverse_rms(x, args.width, args.eps);
    for (int j = 0; j < padded; j += kLanes) {
      const F32 y = mul(mul(load(x + j), inverse), add(load(args.weight + j), offset));
      store(out + j, add(load(residual + j), y));
    }
  }
}

// The sum of f(x) over a row, in vectors: four chains, combined in one order. Lanes past the width
// are given `fill`.
template <class F>
OCTAVO_INLINE float sum_of_row(const float* x, int width, float fill, F&& f) {
  F32 s[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
  const int whole = width / kLanes * kLanes;
  for (int j = 0; j < whole; j += kLanes) {
    const int chain = j / kLanes % 4;
    s[chain] = add(s[chain], f(load(x + j)));
  }
  if (whole < width) {
    alignas(64) float rest[kLanes];
    for (int j = 0; j < kLanes; ++j) rest[j] = whole + j < width ? x[whole + j] : fill;
    s[0] = add(s[0], f(load(rest)));
  }
  return reduce_add(add(add(s[0], s[1]), add(s[2], s[3])));
}

template <class E>
void layer_norm(const NormArgs& args, const Task& task) {
  const int padded = round_up(args.width, kColumnPad);
  const float width = static_cast<float>(args.width);
  int begin, end;
  split_rows(task, &begin, &end);
  for (int row = begin; row < end; ++row) {
    const float* x = row_of<float>(*args.x, row);
    typename E::T* out = row_of<typename E::T>(*args.out, row);
    const float mean = sum_of_row(x, args.width, 0.0f, [](F32 v) { return v; }) / width;
    const F32 center = set1(mean);
    const float square = sum_of_row(x, args.width, mean, [&](F32 v) {
      const F32 d = sub(v, center);
      return mul(d, d);
    });
    const F32 inverse = div(set1(1.0f), vsqrt(set1(square / width + args.eps)));
    for (int j = 0; j < padded; j += kLanes) {
      const F32 y = mul(mul(sub(load(x + j), center), inverse), load(args.weight + j));
      E::narrow(out + j, args.bias ? add(y, load(args.bias + j)) : y);
    }
  }
}

// E is the table's element type.
template <class E>
void embedding_rows(const EmbeddingArgs& args, const Task& task) {
  const int padded = round_up(args.width, kColumnPad);
  const F32 scale = set1(args.scale);
  int begin, end;
  split_rows(task, &begin, &end);
  for (int row = begin; row < end; ++row) {
    const std::int64_t token = task.step->token_ids[row];
    const auto* src = static_cast<const typename E::T*>(args.table.data) + token * args.table.ld;
    float* out = row_of<float>(*args.out, row);
    for (int j = 0; j < padded; j += kLanes) store(out + j, mul(E::widen(src + j), scale));
  }
}

// Gathered from the panels of a linear weight, one column each.
template <class E>
void embedding_panels(const EmbeddingArgs& args, const Task& task) {
  using T = typename E::T;
  const LinearWeight& w = *args.weight;
  const int padded = round_up(args.width, kColumnPad);
  const F32 scale = set1(args.scale);
  alignas(64) T column[kColumnPad];
  int begin, end;
  split_rows(task, &begin, &end);
  for (int row = begin; row < end; ++row) {
    const std::int64_t token = task.step->token_ids[row];
    float* out = row_of<float>(*args.out, row);
    const T* src = static_cast<const T*>(w.panels) + token / kPanel * kPanel * w.k_padded +
                   token % kPanel * E::kStep;
    for (int k = 0; k < padded; k += kColumnPad) {
      for (int j = 0; j < kColumnPad; j += E::kStep) {
        if (k + j < w.k_padded) {
          __builtin_memcpy(column + j, src + (k + j) * kPanel, E::kStep * sizeof(T));
        } else {
          __builtin_memset(column + j, 0, E::kStep * sizeof(T));
        }
      }
      for (int j = 0; j < kColumnPad; j += kLanes) {
        store(out + k + j, mul(E::widen(column + j), scale));
      }
    }
  }
}

}  // namespace
}  // namespace octavo
