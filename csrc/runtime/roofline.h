// The ceilings of this machine, measured: what kernels' times are held against.
#pragma once

#include <cstdint>

namespace octavo {

enum class PeakKind { kF32, kBf16, kInt8 };

// Bytes per second that `num_threads` threads read from memory, one sequential stream each: the
// median of the passes over `bytes` bytes that end within `seconds`, at least three. Choose `bytes`
// well above the caches (512 MB). Throws Error, MemoryError.
double measure_bandwidth(int num_threads, std::int64_t bytes, double seconds);

// Operations per second (a multiply-add is two) of `num_threads` threads that multiply and add in
// registers for `seconds`, by the machine's best instruction for the kind: FMA; vdpbf16ps, or FMA
// where bfloat16 has to be widened; vpdpbusd, or vpmaddwd where int8 has to be widened. Throws
// Error.
double measure_peak(PeakKind kind, int num_threads, double seconds);

}  // namespace octavo
