// Plans buffers into one arena by lifetime.
#pragma once

#include <cstdint>
#include <vector>

namespace octavo {

// A buffer that holds its content from epoch `begin` to epoch `end`, both included.
struct Lifetime {
  std::int64_t bytes;
  int begin;
  int end;
};

struct ArenaPlan {
  std::vector<std::int64_t> offsets;
  std::int64_t bytes = 0;
};

// Greedy by size: large buffers first, each at the lowest offset where no buffer alive at the same
// time lies. Offsets are multiples of 256.
ArenaPlan plan_arena(const std::vector<Lifetime>& buffers);

}  // namespace octavo
