#include "simd/neon.h"
//
#include "kernels/overlay.inl.h"

namespace octavo {

void overlay_neon(KernelTable& table) {
  table.tier = "neon";
  overlay_float32(table);
  overlay_dtype<ElemBf16Widened>(table);
  overlay_quantized<DotWidened>(table);
}

}  // namespace octavo
