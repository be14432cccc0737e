#include "dispatch/dispatch.h"

#include <stdexcept>

#include "dispatch/cpuid.h"

namespace octavo {
namespace {

struct Tier {
  const char* name;
  int rank;  // a cap admits ranks up to that of the tier it names
  bool supported;
  void (*overlay)(KernelTable&);
};

std::vector<Tier> known_tiers() {
  const CpuFeatures cpu = detect_cpu_features();
  (void)cpu;
  return {
      {"scalar", 0, true, overlay_scalar},
#if defined(__x86_64__)
      {"avx2", 1, cpu.avx2, overlay_avx2},
      {"avx512", 2, cpu.avx512, overlay_avx512},
      {"avx512_vnni", 3, cpu.avx512_vnni, overlay_avx512_vnni},
      {"avx512_bf16", 4, cpu.avx512_bf16, overlay_avx512_bf16},
#elif defined(__aarch64__)
      {"neon", 1, cpu.neon, overlay_neon},
#endif
  };
}

int cap_rank(const std::vector<Tier>& tiers, const std::string& cap) {
  if (cap.empty()) return tiers.back().rank;
  std::string names;
  for (const Tier& tier : tiers) {
    if (cap == tier.name) return tier.rank;
    names += (names.empty() ? "" : ", ") + std::string(tier.name);
  }
  throw std::invalid_argument("OCTAVO_CPU_ISA=" + cap +
                              " names no CPU kernel tier; known: " + names);
}

}  // namespace

KernelSelection select_kernels(const std::string& cap) {
  const std::vector<Tier> tiers = known_tiers();
  const int highest = cap_rank(tiers, cap);
  KernelSelection selection;
  for (const Tier& tier : tiers) {
    if (!tier.supported || tier.rank > highest) continue;
    tier.overlay(selection.table);
    selection.tiers.push_back(tier.name);
  }
  return selection;
}

}  // namespace octavo
