// What a product of many rows fetches beside its own weights.
#pragma once

#include "kernels/kv_page.inl.h"
#include "kernels/split.inl.h"

namespace octavo {
namespace {

// The pages that the next attention will read for a thread's part of the requests, in their order.
// A product of many rows computes more than it reads, and attention the other way round: in decode
// steps of 32 and 64 requests attention took some 0.6 of the time when it found its pages in the L3
// cache (single profiles, docs/performance.md).
class PagesAhead {
 public:
  OCTAVO_INLINE explicit PagesAhead(const Task& task) : ahead_(task.kv_ahead), step_(*task.step) {
    if (!ahead_) return;
    split(step_.num_requests, 1, task, &request_, &last_request_);
    next_page();
  }

  OCTAVO_INLINE bool done() const { return !page_ || left_ <= 0; }

  // Where to fetch the next `bytes` from. A page's last part overlaps the one before, or exceeds a
  // smaller page.
  OCTAVO_INLINE const char* take(std::int64_t bytes) {
    const std::int64_t size = ahead_->kv.page_bytes, last = size > bytes ? size - bytes : 0;
    const char* at = page_ + (offset_ < last ? offset_ : last);
    offset_ += bytes;
    left_ -= bytes;
    if (offset_ >= size) next_page();
    return at;
  }

 private:
  // More would fall out of the L3 cache before it is read.
  static constexpr std::int64_t kMaxBytes = 4 << 20;

  // Of the next block that holds tokens from before this step, or null.
  OCTAVO_INLINE void next_page() {
    page_ = nullptr;
    offset_ = 0;
    for (; request_ < last_request_; ++request_, block_ = -1) {
      const int start = step_.query_start[request_];
      if (start == step_.query_start[request_ + 1]) continue;
      const int cached = step_.positions[start], begin = cached + 1 - ahead_->window;
      const int first = ahead_->window > 0 && begin > 0 ? begin / kBlockSize : 0;
      block_ = block_ < 0 ? first : block_ + 1;
      if (block_ * kBlockSize >= cached) continue;
      const GroupView& group = step_.groups[ahead_->kv.group];
      page_ = kv_page(ahead_->kv, group.block_tables[request_ * group.table_ld + block_]);
      return;
    }
  }

  const KvAhead* ahead_;
  const StepView& step_;
  int request_ = 0, last_request_ = 0, block_ = -1;
  const char* page_ = nullptr;
  std::int64_t offset_ = 0, left_ = kMaxBytes;
};

}  // namespace
}  // namespace octavo
