#include "pack/pack_tasks.h"

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/memory.h"

namespace octavo {

// A thread takes all tasks in a row that begin in one page: the first write to a page makes the
// system clear it, and threads that meet there would each clear one, all but one in vain.
void PackTasks::run(ThreadPool& pool) {
  std::vector<std::size_t> starts;
  std::uintptr_t last_page = 0;
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    const std::uintptr_t page = reinterpret_cast<std::uintptr_t>(tasks_[i].to) / kHugePage;
    if (i == 0 || page != last_page) starts.push_back(i);
    last_page = page;
  }
  const std::size_t num_shares = starts.size();
  starts.push_back(tasks_.size());
  std::atomic<std::size_t> next{0};
  auto pack_shares = [&](int) {
    for (std::size_t s; (s = next.fetch_add(1, std::memory_order_relaxed)) < num_shares;) {
      for (std::size_t i = starts[s]; i < starts[s + 1]; ++i) tasks_[i].pack();
    }
  };
  if (num_shares > 1) {
    pool.run(pack_shares);
  } else {
    pool.run_alone(pack_shares);
  }
  tasks_.clear();
}

}  // namespace octavo
