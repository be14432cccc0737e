#include "dispatch/dispatch.h"

#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "dispatch/cpuid.h"

namespace octavo {
namespace {

struct Tier {
  const char* name;
  int rank;  // OCTAVO_CPU_ISA admits ranks up to that of the tier it names
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
      {"avx512_bf16", 4, cpu.avx512_bf16, overlay_avx512_bf16},
#elif defined(__aarch64__)
      {"neon", 1, cpu.neon, overlay_neon},
#endif
  };
}

struct Selection {
  KernelTable table{};
  std::vector<std::string> tiers;
};

int cap_rank(const std::vector<Tier>& tiers) {
  const char* cap = std::getenv("OCTAVO_CPU_ISA");
  if (!cap || !*cap) return tiers.back().rank;
  std::string names;
  for (const Tier& tier : tiers) {
    if (std::strcmp(tier.name, cap) == 0) return tier.rank;
    names += (names.empty() ? "" : ", ") + std::string(tier.name);
  }
  throw std::invalid_argument("OCTAVO_CPU_ISA=" + std::string(cap) +
                              " names no CPU kernel tier; known: " + names);
}

Selection select() {
  Selection s;
  const std::vector<Tier> tiers = known_tiers();
  const int cap = cap_rank(tiers);
  for (const Tier& tier : tiers) {
    if (!tier.supported || tier.rank > cap) continue;
    tier.overlay(s.table);
    s.tiers.push_back(tier.name);
  }
  return s;
}

const Selection& selection() {
  static const Selection s = select();
  return s;
}

}  // namespace

const std::vector<std::string>& active_tiers() { return selection().tiers; }

const KernelTable& kernels() { return selection().table; }

}  // namespace octavo
