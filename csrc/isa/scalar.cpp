#include "simd/generic.h"
//
#include "kernels/overlay.inl.h"

namespace octavo {

void overlay_scalar(KernelTable& table) {
  table.tier = "scalar";
  overlay_float32(table);
  overlay_dtype<ElemBf16Widened>(table);
  overlay_quantized<DotWidened>(table);
  overlay_quantized_embedding(table);
}

}  // namespace octavo
