#include "runtime/kv_cache.h"

#include <cstring>

#include "runtime/error.h"

namespace octavo {
namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 46;

}  // namespace

KvCache::KvCache(std::int64_t num_tensors, std::int64_t num_blocks, std::int64_t page_bytes)
    : num_tensors_(num_tensors), num_blocks_(num_blocks), page_bytes_(page_bytes) {
  require(num_tensors > 0 && num_tensors <= 100000, "a KV cache needs 1…100000 layers");
  require(num_blocks > 1 && num_blocks <= (1 << 27), "a KV cache needs 2…2^27 blocks");
  require(page_bytes > 0 && page_bytes <= (1 << 26), "KV pages must have 1…2^26 bytes");
  // On 2 MB pages attention reads a quarter to a third faster: a block's head is all that a 4 KB
  // page holds.
  require(num_blocks <= kMaxBytes / block_bytes(), "a KV cache must have at most 2^46 bytes");
  const std::int64_t bytes = num_blocks * block_bytes();
  region_ = std::make_unique<Region>(bytes, bytes >= (4 << 20));
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
  for (const auto& [src, dst] : copies) {
    if (src == dst) continue;
    std::memcpy(region_->data() + dst * block_bytes(), region_->data() + src * block_bytes(),
                static_cast<std::size_t>(block_bytes()));
  }
}

void KvCache::clear_blocks(const std::vector<std::int64_t>& blocks) {
  for (const std::int64_t block : blocks) check_block(block);
  for (const std::int64_t block : blocks) {
    std::memset(region_->data() + block * block_bytes(), 0,
                static_cast<std::size_t>(block_bytes()));
  }
}

}  // namespace octavo
