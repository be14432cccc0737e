#include "runtime/memory.h"

#include <sys/mman.h>

#include "runtime/error.h"

namespace octavo {
namespace {

constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kTail =
    kPage;  // kernels load whole vectors: some read past the last element

}  // namespace

Region::Region(std::int64_t bytes, bool huge) : bytes_(bytes) {
  const std::int64_t alignment = huge ? kHugePage : kPage;
  mapping_bytes_ = round_to(bytes + kTail, alignment) + (huge ? alignment : 0);
  mapping_ = mmap(nullptr, static_cast<std::size_t>(mapping_bytes_), PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    throw MemoryError("the system refuses to map " + std::to_string(bytes) + " bytes of memory");
  }
  const auto address = reinterpret_cast<std::uintptr_t>(mapping_);
  data_ = reinterpret_cast<char*>(round_to(static_cast<std::int64_t>(address), alignment));
#ifdef MADV_HUGEPAGE
  if (huge) madvise(data_, static_cast<std::size_t>(round_to(bytes, kHugePage)), MADV_HUGEPAGE);
#endif
}

Region::~Region() {
  if (mapping_) munmap(mapping_, static_cast<std::size_t>(mapping_bytes_));
}

Allocation WeightHeap::allocate(std::int64_t bytes) {
  const std::int64_t size = round_to(bytes, 256);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (size > kRegionBytes / 2) {
    auto own = std::make_shared<Region>(size, true);
    return {own, own->data(), bytes};
  }
  if (!region_ || used_ + size > region_->bytes()) {
    region_ = std::make_shared<Region>(kRegionBytes, true);
    used_ = 0;
  }
  Allocation a{region_, region_->data() + used_, bytes};
  used_ += size;
  return a;
}

}  // namespace octavo
