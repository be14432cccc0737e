#include "simd/avx512.h"
//
#include "kernels/overlay.inl.h"

namespace octavo {

void overlay_avx512(KernelTable& table) {
  table.tier = "avx512";
  overlay_float32(table);
  overlay_dtype<ElemBf16Widened>(table);
  overlay_quantized<DotWidened>(table);
}

}  // namespace octavo
