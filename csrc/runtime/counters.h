// Counters that a running program and other threads wait for each other with.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace octavo {

class Counters {
 public:
  static constexpr int kMaxCounters = 1 << 16;

  int size() const;
  void grow(int size);  // new ones are 0

  std::int64_t value(int counter) const;
  void add(int counter, std::int64_t n);

  // Returns once the counter has reached `target`, true; or false after `seconds` (negative: never
  // gives up). Throws Error after `cancel`.
  bool wait(int counter, std::int64_t target, double seconds) const;

  // Makes every wait fail, now and later: whoever should have counted cannot.
  void cancel(const std::string& reason);

 private:
  void check(int counter) const;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<std::int64_t> values_;
  bool cancelled_ = false;
  std::string reason_;
};

}  // namespace octavo
