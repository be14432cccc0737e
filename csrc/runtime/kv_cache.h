// The pool of KV pages. Pages of 2^run_shift blocks of one tensor lie together: a run; then come
// the same blocks of the next tensor. So a request's first tokens touch a few large pages of
// memory, and not one of every layer, and attention still reads long stretches.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
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
  // How kernels find a tensor's pages; heads and group are the caller's to fill in.
  KvView tensor(std::int64_t i) const;

  // In order, in every tensor. The null block is refused.
  void copy_blocks(const std::vector<std::pair<std::int64_t, std::int64_t>>& copies);
  void clear_blocks(const std::vector<std::int64_t>& blocks);

 private:
  void check_block(std::int64_t block) const;
  char* page(std::int64_t tensor, std::int64_t block) const;

  std::int64_t num_tensors_, num_blocks_, page_bytes_;
  int run_shift_ = 0;
  std::unique_ptr<Region> region_;
};

}  // namespace octavo
