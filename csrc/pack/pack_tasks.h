// Parts of weights that are still to be packed, collected so that all threads share the work of
// many weights: one weight takes about a millisecond, less than threads wait for one another where
// another process holds a CPU (docs/performance.md, "Start").
#pragma once

#include <functional>
#include <vector>

#include "runtime/thread_pool.h"

namespace octavo {

class PackTasks {
 public:
  // `pack` writes from `to` on. It is called once, on any thread.
  void add(const char* to, std::function<void()> pack) { tasks_.push_back({to, std::move(pack)}); }
  // Runs all tasks, as threads come free; then none is left.
  void run(ThreadPool& pool);

 private:
  struct Task {
    const char* to;
    std::function<void()> pack;
  };

  std::vector<Task> tasks_;
};

}  // namespace octavo
