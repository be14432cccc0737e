// Static split of work among threads.
#pragma once

namespace octavo {
namespace {

// Thread t's contiguous part of n, in multiples of `granule`.
OCTAVO_INLINE void split(int n, int granule, const Task& task, int* begin, int* end) {
  const std::int64_t chunks = (n + granule - 1) / granule;
  const std::int64_t b = chunks * task.thread / task.num_threads * granule;
  const std::int64_t e = chunks * (task.thread + 1) / task.num_threads * granule;
  *begin = static_cast<int>(b < n ? b : n);
  *end = static_cast<int>(e < n ? e : n);
}

// Rows of a row-wise op: the same ranges as a linear op's when split by rows.
OCTAVO_INLINE void split_rows(const Task& task, int* begin, int* end) {
  split(task.rows, task.by_rows ? kRowGranule : 1, task, begin, end);
}

OCTAVO_INLINE int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

template <class T>
OCTAVO_INLINE T* row_of(const Buffer& b, std::int64_t row) {
  return static_cast<T*>(b.data) + row * b.ld;
}

}  // namespace
}  // namespace octavo
