#include "runtime/roofline.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "dispatch/cpuid.h"
#include "runtime/error.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define OCTAVO_REGISTER "+v"
#elif defined(__aarch64__)
#include <arm_neon.h>
#define OCTAVO_REGISTER "+w"
#endif

// The value must be in a register, and nothing is known of it.
#define OCTAVO_HIDE(value) __asm__ volatile("" : OCTAVO_REGISTER(value))

// void name(steps): `chains` independent chains of multiply-adds in registers. As many as hide an
// instruction's latency (4 to 6 cycles on two units), no more than there are registers. Chains that
// start from a known value would be merged into one.
#define OCTAVO_PEAK_LOOP(name, attributes, Vector, chains, multiply_add)               \
  attributes void name(std::int64_t steps) {                                           \
    Vector x{}, y{}, acc[chains]{};                                                    \
    OCTAVO_HIDE(x);                                                                    \
    OCTAVO_HIDE(y);                                                                    \
    _Pragma("GCC unroll 16") for (int i = 0; i < chains; ++i) OCTAVO_HIDE(acc[i]);     \
    for (std::int64_t n = 0; n < steps; ++n) {                                         \
      _Pragma("GCC unroll 16") for (int i = 0; i < chains; ++i) acc[i] = multiply_add; \
    }                                                                                  \
    _Pragma("GCC unroll 16") for (int i = 0; i < chains; ++i) OCTAVO_HIDE(acc[i]);     \
  }

namespace octavo {
namespace {

using Clock = std::chrono::steady_clock;

struct Peak {
  void (*loop)(std::int64_t steps);
  int operations;  // per step
};

#if defined(__x86_64__)

#define OCTAVO_TARGET(isa) __attribute__((target(isa)))

OCTAVO_PEAK_LOOP(sse_f32, , __m128, 12, _mm_add_ps(_mm_mul_ps(x, y), acc[i]))
OCTAVO_PEAK_LOOP(sse_int8, , __m128i, 12, _mm_add_epi32(_mm_madd_epi16(acc[i], x), y))
OCTAVO_PEAK_LOOP(avx2_f32, OCTAVO_TARGET("avx2,fma"), __m256, 12, _mm256_fmadd_ps(x, y, acc[i]))
OCTAVO_PEAK_LOOP(avx2_int8, OCTAVO_TARGET("avx2"), __m256i, 12,
                 _mm256_add_epi32(_mm256_madd_epi16(acc[i], x), y))
OCTAVO_PEAK_LOOP(avx512_f32, OCTAVO_TARGET("avx512f"), __m512, 16, _mm512_fmadd_ps(x, y, acc[i]))
OCTAVO_PEAK_LOOP(avx512_int8, OCTAVO_TARGET("avx512bw"), __m512i, 16,
                 _mm512_add_epi32(_mm512_madd_epi16(acc[i], x), y))
OCTAVO_PEAK_LOOP(avx512_bf16, OCTAVO_TARGET("avx512bf16"), __m512, 16,
                 _mm512_dpbf16_ps(acc[i], (__m512bh)x, (__m512bh)y))
OCTAVO_PEAK_LOOP(avx512_vnni, OCTAVO_TARGET("avx512vnni"), __m512i, 16,
                 _mm512_dpbusd_epi32(acc[i], x, y))

Peak best_peak(PeakKind kind) {
  const CpuFeatures cpu = detect_cpu_features();
  if (kind == PeakKind::kInt8) {
    if (cpu.avx512_vnni) return {avx512_vnni, 16 * 64 * 2};
    if (cpu.avx512) return {avx512_int8, 16 * 32 * 2};
    return cpu.avx2 ? Peak{avx2_int8, 12 * 16 * 2} : Peak{sse_int8, 12 * 8 * 2};
  }
  if (kind == PeakKind::kBf16 && cpu.avx512_bf16) return {avx512_bf16, 16 * 32 * 2};
  if (cpu.avx512) return {avx512_f32, 16 * 16 * 2};
  return cpu.avx2 ? Peak{avx2_f32, 12 * 8 * 2} : Peak{sse_f32, 12 * 4 * 2};
}

#elif defined(__aarch64__)

OCTAVO_PEAK_LOOP(neon_f32, , float32x4_t, 16, vfmaq_f32(acc[i], x, y))
OCTAVO_PEAK_LOOP(neon_int8, , int16x8_t, 16,
                 vmlal_s8(acc[i], vget_low_s8(vreinterpretq_s8_s16(x)),
                          vget_low_s8(vreinterpretq_s8_s16(y))))

Peak best_peak(PeakKind kind) {
  return kind == PeakKind::kInt8 ? Peak{neon_int8, 16 * 8 * 2} : Peak{neon_f32, 16 * 4 * 2};
}

#endif

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void check_seconds(double seconds) {
  require(seconds > 0.0 && seconds <= 60.0, "a measurement takes more than 0 and at most 60 s");
}

void read_memory(const char* data, std::int64_t bytes) {
  typedef std::uint64_t Word __attribute__((vector_size(16)));
  Word sum[4] = {};
  for (std::int64_t at = 0; at < bytes; at += sizeof sum) {
    Word line[4];
    std::memcpy(line, data + at, sizeof line);
    for (int i = 0; i < 4; ++i) sum[i] += line[i];
  }
  for (Word& s : sum) OCTAVO_HIDE(s);
}

}  // namespace

double measure_bandwidth(int num_threads, std::int64_t bytes, double seconds) {
  constexpr std::int64_t kPage = 4096, kLeast = 1 << 20, kMost = std::int64_t{1} << 36;
  constexpr std::size_t kLeastPasses = 3;
  check_seconds(seconds);
  require(bytes >= kLeast && bytes <= kMost, "bandwidth is measured over 2^20…2^36 bytes");
  ThreadPool pool(num_threads, {});
  const std::int64_t share = (bytes + kPage * num_threads - 1) / (kPage * num_threads) * kPage;
  const Region region(share * num_threads, true);
  pool.run([&](int thread) {  // own pages, instead of the system's one page of zeros
    std::memset(region.data() + thread * share, 1, static_cast<std::size_t>(share));
  });
  std::vector<double> passes;
  for (const auto start = Clock::now();
       passes.size() < kLeastPasses || seconds_since(start) < seconds;) {
    const auto pass = Clock::now();
    pool.run([&](int thread) { read_memory(region.data() + thread * share, share); });
    passes.push_back(seconds_since(pass));
  }
  std::nth_element(passes.begin(), passes.begin() + passes.size() / 2, passes.end());
  return static_cast<double>(region.bytes()) / passes[passes.size() / 2];
}

double measure_peak(PeakKind kind, int num_threads, double seconds) {
  constexpr std::int64_t kSteps = 100000;  // under a millisecond
  check_seconds(seconds);
  ThreadPool pool(num_threads, {});
  const Peak peak = best_peak(kind);
  std::vector<double> rates(num_threads);
  pool.run([&](int thread) {
    peak.loop(kSteps);  // a core takes its time to power its wide units
    std::int64_t steps = 0;
    double elapsed;
    const auto start = Clock::now();
    do {
      peak.loop(kSteps);
      steps += kSteps;
      elapsed = seconds_since(start);
    } while (elapsed < seconds);
    rates[thread] = static_cast<double>(steps) * peak.operations / elapsed;
  });
  double total = 0.0;
  for (const double rate : rates) total += rate;
  return total;
}

}  // namespace octavo
