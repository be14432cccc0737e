// The pool of KV pages: one region per tensor, block after block.
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

  std::int64_t num_tensors() const { return static_cast<std::int64_t>(tensors_.size()); }
  std::int64_t num_blocks() const { return num_blocks_; }
  std::int64_t page_bytes() const { return page_bytes_; }
  char* tensor(std::int64_t i) const { return tensors_[i]->data(); }

  // In order, in every tensor. The null block is refused.
  void copy_blocks(const std::vector<std::pair<std::int64_t, std::int64_t>>& copies);
  void clear_blocks(const std::vector<std::int64_t>& blocks);

 private:
  void check_block(std::int64_t block) const;

  std::int64_t num_blocks_, page_bytes_;
  std::vector<std::unique_ptr<Region>> tensors_;
};

}  // namespace octavo
