#include "dispatch/cpuid.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstdint>
#endif

namespace octavo {

#if defined(__x86_64__)
namespace {

std::uint64_t xgetbv0() {
  std::uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<std::uint64_t>(high) << 32 | low;
}

bool bit(unsigned word, int index) { return (word >> index) & 1; }

}  // namespace

CpuFeatures detect_cpu_features() {
  CpuFeatures f;
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !bit(c, 27)) return f;  // OSXSAVE
  const std::uint64_t saved = xgetbv0();
  const bool ymm = (saved & 0x06) == 0x06, zmm = (saved & 0xe6) == 0xe6;
  const bool fma = bit(c, 12), avx = bit(c, 28), half = bit(c, 29);
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return f;
  const unsigned max_subleaf = a;
  f.avx2 = ymm && avx && fma && half && bit(b, 5);
  f.avx512 = f.avx2 && zmm && bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);
  f.avx512_vnni = f.avx512 && bit(c, 11);
  if (max_subleaf >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) {
    f.avx512_bf16 = f.avx512 && bit(a, 5);
  }
  return f;
}

#elif defined(__aarch64__)

CpuFeatures detect_cpu_features() {
  CpuFeatures f;
  f.neon = true;  // part of the base architecture
  return f;
}

#else

CpuFeatures detect_cpu_features() { return {}; }

#endif

}  // namespace octavo
