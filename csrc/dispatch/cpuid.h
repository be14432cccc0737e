// What this processor and its operating system offer.
#pragma once

namespace octavo {

struct CpuFeatures {
  bool avx2 = false;         // AVX2, FMA, F16C; YMM state saved by the OS
  bool avx512 = false;       // AVX-512 F, BW, DQ, VL; ZMM state saved by the OS
  bool avx512_vnni = false;  // and AVX512-VNNI
  bool avx512_bf16 = false;  // and AVX512-BF16
  bool neon = false;
};

CpuFeatures detect_cpu_features();

}  // namespace octavo
