#include "runtime/kv_cache.h"

#include <cstring>

#include "runtime/error.h"

namespace octavo {
namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 46;
constexpr std::int64_t kRunBytes = 256 << 10;  // docs/performance.md, "Reading the KV cache"

}  // namespace

KvCache::KvCache(std::int64_t num_tensors, std::int64_t num_blocks, std::int64_t page_bytes)
    : num_tensors_(num_tensors), num_blocks_(num_blocks), page_bytes_(page_bytes) {
  require(num_tensors > 0 && num_tensors <= 100000, "a KV cache needs 1…100000 layers");
  require(num_blocks > 1 && num_blocks <= (1 << 27), "a KV cache needs 2…2^27 blocks");
  require(page_bytes > 0 && page_bytes <= (1 << 26), "KV pages must have 1…2^26 bytes");
  while (page_bytes << (run_shift_ + 1) <= kRunBytes) ++run_shift_;
  const std::int64_t run_blocks = std::int64_t{1} << run_shift_;
  const std::int64_t block_bytes = num_tensors * page_bytes;
  require(num_blocks <= kMaxBytes / block_bytes, "a KV cache must have at most 2^46 bytes");
  // On 2 MB pages attention reads a quarter to a third faster: a block's head is all that a 4 KB
  // page holds.
  const bool huge = num_blocks * block_bytes >= (4 << 20);
  region_ = std::make_unique<Region>(round_to(num_blocks, run_blocks) * block_bytes, huge);
}

KvView KvCache::tensor(std::int64_t i) const {
  KvView view{};
  view.base = page(i, 0);
  view.page_bytes = page_bytes_;
  view.run_stride = (num_tensors_ * page_bytes_) << run_shift_;
  view.run_shift = run_shift_;
  return view;
}

char* KvCache::page(std::int64_t tensor, std::int64_t block) const {
  const std::int64_t run = block >> run_shift_, in_run = block - (run << run_shift_);
  return region_->data() + (((run * num_tensors_ + tensor) << run_shift_) + in_run) * page_bytes_;
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
    for (std::int64_t i = 0; i < num_tensors_ && src != dst; ++i) {
      std::memcpy(page(i, dst), page(i, src), static_cast<std::size_t>(page_bytes_));
    }
  }
}

void KvCache::clear_blocks(const std::vector<std::int64_t>& blocks) {
  for (const std::int64_t block : blocks) check_block(block);
  for (const std::int64_t block : blocks) {
    for (std::int64_t i = 0; i < num_tensors_; ++i) {
      std::memset(page(i, block), 0, static_cast<std::size_t>(page_bytes_));
    }
  }
}

}  // namespace octavo
