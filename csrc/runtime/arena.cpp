#include "runtime/arena.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace octavo {

ArenaPlan plan_arena(const std::vector<Lifetime>& buffers) {
  constexpr std::int64_t kAlignment = 256;
  ArenaPlan plan;
  plan.offsets.assign(buffers.size(), -1);
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return buffers[a].bytes > buffers[b].bytes;
  });
  std::vector<std::pair<std::int64_t, std::int64_t>> taken;
  for (const std::size_t i : order) {
    const Lifetime& own = buffers[i];
    taken.clear();
    for (std::size_t j = 0; j < buffers.size(); ++j) {
      const Lifetime& other = buffers[j];
      if (plan.offsets[j] < 0 || other.end < own.begin || own.end < other.begin) continue;
      taken.emplace_back(plan.offsets[j], plan.offsets[j] + other.bytes);
    }
    std::sort(taken.begin(), taken.end());
    std::int64_t offset = 0;
    for (const auto& [begin, end] : taken) {
      if (offset + own.bytes <= begin) break;
      offset = std::max(offset, (end + kAlignment - 1) / kAlignment * kAlignment);
    }
    plan.offsets[i] = offset;
    plan.bytes = std::max(plan.bytes, offset + own.bytes);
  }
  return plan;
}

}  // namespace octavo
