#include "simd/avx512_vnni.h"
//
#include "kernels/overlay.inl.h"

namespace octavo {

void overlay_avx512_vnni(KernelTable& table) {
  table.tier = "avx512_vnni";
  overlay_quantized<DotVnni>(table);
}

}  // namespace octavo
