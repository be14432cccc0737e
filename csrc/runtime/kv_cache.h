// The pool of KV pages: block after block, of each the pages of all tensors. So a request touches
// as much memory as its blocks have, and not a large page of every layer.
#pragma once

#include <cstdint>
#include <vector>

#include "api/types.h"
#include "runtime/memory.h"

namespace octavo {

class KvCache {
 public:
  KvCache(std::int64_t num_tensors, std::int64_t num_blocks, std::int64_t page_bytes);
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  std::int64_t num_tensors() const { return num_tensors_; }
  std::int64_t num_blocks() const { return num_blocks_; }
  std::int64_t page_bytes() const { return page_bytes_; }
  std::int64_t block_bytes() const { return num_tensors_ * page_bytes_; }
  // The page of block 0; those of others follow at multiples of block_bytes().
  char* tensor(std::int64_t i) const { return region_->data() + i * page_bytes_; }

  // In order, in every tensor. The null block is refused.
  void copy_blocks(const std::vector<std::pair<std::int64_t, std::int64_t>>& copies);
  void clear_blocks(const std::vector<std::int64_t>& blocks);

 private:
  void check_block(std::int64_t block) const;

  std::int64_t num_tensors_, num_blocks_, page_bytes_;
  std::unique_ptr<Region> region_;
};

}  // namespace octavo
