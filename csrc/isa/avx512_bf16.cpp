#include "simd/avx512_bf16.h"
//
#include "kernels/overlay.inl.h"

namespace octavo {

void overlay_avx512_bf16(KernelTable& table) {
  table.tier = "avx512_bf16";
  overlay_dtype<ElemBf16Native>(table);
}

}  // namespace octavo
