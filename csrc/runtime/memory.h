// Memory from the system: zero-filled, touched lazily.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

namespace octavo {

constexpr std::int64_t kHugePage = 2 << 20;

// Up to the next multiple.
inline std::int64_t round_to(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// An anonymous mapping. `huge` asks for 2 MB pages, and aligns to them.
class Region {
 public:
  Region(std::int64_t bytes, bool huge);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  char* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  void* mapping_ = nullptr;
  std::int64_t mapping_bytes_ = 0;
  char* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

// A piece of a region, which it keeps alive.
struct Allocation {
  std::shared_ptr<Region> region;
  char* data = nullptr;
  std::int64_t bytes = 0;
};

// Weights, one after the other in large regions, in the order in which a step reads them.
class WeightHeap {
 public:
  Allocation allocate(std::int64_t bytes);

 private:
  static constexpr std::int64_t kRegionBytes = 64 << 20;
  std::mutex mutex_;
  std::shared_ptr<Region> region_;
  std::int64_t used_ = 0;
};

}  // namespace octavo
