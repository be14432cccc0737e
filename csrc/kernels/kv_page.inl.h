// Where a block of the KV cache is.
#pragma once

#include "simd/common.h"

namespace octavo {
namespace {

// The page that a layer has of a block.
OCTAVO_INLINE char* kv_page(const KvView& kv, std::int64_t block) {
  const std::int64_t in_run = block & ((std::int64_t{1} << kv.run_shift) - 1);
  return kv.base + (block >> kv.run_shift) * kv.run_stride + in_run * kv.page_bytes;
}

}  // namespace
}  // namespace octavo
