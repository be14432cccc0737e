#include "simd/avx2.h"
//
#include "kernels/overlay.inl.h"

namespace octavo {

void overlay_avx2(KernelTable& table) {
  table.tier = "avx2";
  overlay_float32(table);
  overlay_dtype<ElemBf16Widened>(table);
  overlay_quantized<DotWidened>(table);
}

}  // namespace octavo
