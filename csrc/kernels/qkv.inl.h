// q, k, v of one projection: head norm, rope, and the store of k and v into the cache.
#pragma once

#include "kernels/gemm_unpacked.inl.h"
#include "kernels/kv_page.inl.h"

namespace octavo {
namespace {

constexpr int kHeadPad = kMaxHeadDim + 16;

// x * rsqrt(mean(x²) + eps) * (weight + offset), in place. Padding of x and weight is zero.
OCTAVO_INLINE void normalize_head(float* x, const float* weight, int dim, float eps, float offset) {
  F32 square = set1(0.0f);
  for (int j = 0; j < dim; j += kLanes) square = fma(load(x + j), load(x + j), square);
  const F32 mean = set1(reduce_add(square) / static_cast<float>(dim) + eps);
  const F32 inverse = div(set1(1.0f), vsqrt(mean));
  for (int j = 0; j < dim; j += kLanes) {
    store(x + j, mul(mul(load(x + j), inverse), add(load(weight + j), set1(offset))));
  }
}

OCTAVO_INLINE void rotate_head(float* x, const RopeView& rope, std::int64_t position) {
  const int half = rope.rotary_dim / 2;
  const float* cos = rope.cos + position * rope.ld;
  const float* sin = rope.sin + position * rope.ld;
  if (rope.interleaved) {
    for (int i = 0; i < half; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * cos[i] - b * sin[i];
      x[2 * i + 1] = b * cos[i] + a * sin[i];
    }
    return;
  }
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const F32 a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
    store(x + i, sub(mul(a, c), mul(b, s)));
    store(x + half + i, add(mul(b, c), mul(a, s)));
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    x[i] = a * cos[i] - b * sin[i];
    x[half + i] = b * cos[i] + a * sin[i];
  }
}

template <class E>
OCTAVO_INLINE void store_key(char* page, int head_dim, int offset, const typename E::T* k) {
  typename E::T* out = reinterpret_cast<typename E::T*>(page) + offset * E::kStep;
  for (int j = 0; j < head_dim; j += E::kStep) {
    __builtin_memcpy(out + j * kBlockSize, k + j, E::kStep * sizeof(typename E::T));
  }
}

template <class E>
OCTAVO_INLINE void store_value(char* page, int head_dim, int offset, const typename E::T* v) {
  typename E::T* out = reinterpret_cast<typename E::T*>(page) + head_dim * kBlockSize +
                       offset / E::kStep * head_dim * E::kStep + offset % E::kStep;
  for (int j = 0; j < head_dim; ++j) out[j * E::kStep] = v[j];
}

// One head of one row, from its float32 projection to where it goes.
template <class E>
void finish_head(const QkvArgs& args, const StepView& step, int row, int head, const float* src) {
  using T = typename E::T;
  const int num_heads = args.heads.num_heads, num_kv_heads = args.heads.num_kv_heads;
  const int dim = args.heads.head_dim;
  alignas(64) float x[kHeadPad];
  alignas(64) T narrow[kHeadPad];
  const int padded = round_up(dim, kLanes);
  const bool is_value = head >= num_heads + num_kv_heads;
  const bool is_query = head < num_heads;
  if (!is_value || padded > dim) {
    for (int j = 0; j + kLanes <= dim; j += kLanes) store(x + j, load(src + j));
    for (int j = dim / kLanes * kLanes; j < padded; ++j) x[j] = j < dim ? src[j] : 0.0f;
    src = x;
  }
  if (!is_value) {
    const float* norm = is_query ? args.norm.q : args.norm.k;
    if (norm) normalize_head(x, norm, dim, args.norm.eps, args.norm.offset);
    if (args.rope.rotary_dim > 0) rotate_head(x, args.rope, step.positions[row]);
  }
  T* query = row_of<T>(*args.q, row) + static_cast<std::int64_t>(head) * dim;
  T* to = is_query && padded == dim ? query : narrow;
  for (int j = 0; j < padded; j += kLanes) E::narrow(to + j, load(src + j));
  if (is_query) {
    if (to != query) __builtin_memcpy(query, narrow, dim * sizeof(T));
    return;
  }
  const int slot = step.groups[args.kv.group].slots[row];
  const int kv_head = (head - num_heads) % num_kv_heads;
  char* page = kv_page(args.kv, slot / kBlockSize) + kv_head * args.kv.head_bytes;
  if (is_value) {
    store_value<E>(page, dim, slot % kBlockSize, narrow);
  } else {
    store_key<E>(page, dim, slot % kBlockSize, narrow);
  }
}

template <class E>
OCTAVO_INLINE void zero_query_padding(const QkvArgs& args, int row) {
  const int width = args.heads.num_heads * args.heads.head_dim;
  typename E::T* out = row_of<typename E::T>(*args.q, row);
  for (int j = width; j < round_up(width, kColumnPad); ++j) out[j] = 0;
}

// Panels that hold a whole number of heads.
OCTAVO_INLINE int panels_per_head_group(int head_dim) {
  int a = head_dim, b = kPanel;
  while (b) {
    const int r = a % b;
    a = b;
    b = r;
  }
  return head_dim / a;
}

// Fetches the pages that a row is stored into, for all kv heads, into L2: one of `parts` parts.
// Nothing where the row before has fetched them. (A key's store touches a line per pair of its
// elements; fetched during the projection, steps of 8 and 32 requests take 0.97 and 0.96 of the
// time.)
OCTAVO_INLINE void prefetch_pages(const QkvArgs& args, const StepView& step, int row, int first_row,
                                  int part, int parts) {
  const std::int32_t* slots = step.groups[args.kv.group].slots;
  const int block = slots[row] / kBlockSize;
  if (row > first_row && slots[row - 1] / kBlockSize == block) return;
  const int lines = static_cast<int>(args.heads.num_kv_heads * args.kv.head_bytes / kLine);
  const char* page = kv_page(args.kv, block);
  const int end = lines * (part + 1) / parts;
  for (int i = lines * part / parts; i < end; ++i) prefetch_l2(page + i * kLine);
}

template <class G, class E>
void qkv_project(const QkvArgs& args, const Task& task) {
  const LinearWeight& w = *args.weight;
  if (!task.by_rows) {
    const GemmRange range = gemm_range(task, w.num_panels, 1);
    // The rows that this thread will finish.
    int first, last;
    split(task.rows, 1, task, &first, &last);
    const int panels = range.panel_end - range.panel_begin;
    gemm(G(*args.x, w), range, 1, task,
         [&](int row, int count, int panel, int, const float* c, std::int64_t ldc) {
           for (int i = 0; i < count; ++i) {
             float* out = row_of<float>(*args.raw, row + i) + panel * kPanel;
             OCTAVO_UNROLL for (int j = 0; j < kPanel; j += kLanes) {
               store(out + j, load(c + i * ldc + j));
             }
             if (row + i >= first && row + i < last) {
               prefetch_pages(args, *task.step, row + i, first, panel - range.panel_begin, panels);
             }
           }
         });
    return;
  }
  const int dim = args.heads.head_dim;
  const int num_heads = args.heads.num_heads + 2 * args.heads.num_kv_heads;
  const int group = panels_per_head_group(dim);
  const GemmRange range = gemm_range(task, w.num_panels, group);
  // Groups of queries only, during which pages are fetched; keys and values come behind.
  const int query_groups = args.heads.num_heads * dim / (group * kPanel);
  gemm(G(*args.x, w), range, group, task,
       [&](int row, int count, int panel, int panels, const float* c, std::int64_t ldc) {
         const int first = panel * kPanel / dim;
         const int end = first + panels * kPanel / dim;
         for (int i = 0; i < count; ++i) {
           if (panel / group < query_groups) {
             prefetch_pages(args, *task.step, row + i, range.row_begin, panel / group,
                            query_groups);
           }
           for (int h = first; h < end && h < num_heads; ++h) {
             finish_head<E>(args, *task.step, row + i, h, c + i * ldc + (h - first) * dim);
           }
         }
       });
  for (int row = range.row_begin; row < range.row_end; ++row) zero_query_padding<E>(args, row);
}

// Fetches what a row's keys and values are stored into: a line per element pair of a key, and those
// of one value.
template <class E>
OCTAVO_INLINE void prefetch_slot(const QkvArgs& args, const StepView& step, int row) {
  const int dim = args.heads.head_dim, item = static_cast<int>(sizeof(typename E::T));
  const int slot = step.groups[args.kv.group].slots[row];
  for (int h = 0; h < args.heads.num_kv_heads; ++h) {
    const char* page = kv_page(args.kv, slot / kBlockSize) + h * args.kv.head_bytes;
    const int key_bytes = dim * kBlockSize * item, value_bytes = dim * E::kStep * item;
    const char* value = page + key_bytes + slot % kBlockSize / E::kStep * value_bytes;
    for (int j = 0; j < key_bytes; j += kLine) prefetch_l1(page + j);
    for (int j = 0; j < value_bytes; j += kLine) prefetch_l1(value + j);
  }
}

template <class E>
void qkv_finish(const QkvArgs& args, const Task& task) {
  const int num_heads = args.heads.num_heads + 2 * args.heads.num_kv_heads;
  int begin, end;
  split(task.rows * num_heads, 1, task, &begin, &end);
  for (int item = begin; item < end; ++item) {
    const int row = item / num_heads, head = item % num_heads;
    const float* src = row_of<float>(*args.raw, row) + head * args.heads.head_dim;
    if (head == 0 && item + num_heads < end) prefetch_slot<E>(args, *task.step, row + 1);
    finish_head<E>(args, *task.step, row, head, src);
    if (head == 0) zero_query_padding<E>(args, row);
  }
}

}  // namespace
}  // namespace octavo
