#include "runtime/counters.h"

#include <algorithm>
#include <chrono>

#include "runtime/error.h"

namespace octavo {

int Counters::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(values_.size());
}

void Counters::grow(int size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  require(size <= kMaxCounters, "a program has at most 2^16 counters");
  if (size > static_cast<int>(values_.size())) values_.resize(size, 0);
}

void Counters::check(int counter) const {
  if (counter < 0 || counter >= static_cast<int>(values_.size())) {
    throw Error("counter " + std::to_string(counter) + " does not exist; the program has " +
                std::to_string(values_.size()));
  }
}

std::int64_t Counters::value(int counter) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  check(counter);
  return values_[counter];
}

void Counters::add(int counter, std::int64_t n) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    check(counter);
    values_[counter] += n;
  }
  changed_.notify_all();
}

bool Counters::wait(int counter, std::int64_t target, double seconds) const {
  std::unique_lock<std::mutex> lock(mutex_);
  check(counter);
  const auto is_over = [&] { return cancelled_ || values_[counter] >= target; };
  if (seconds < 0) {
    changed_.wait(lock, is_over);
  } else {
    constexpr double kLongest = 1e6;
    changed_.wait_for(lock, std::chrono::duration<double>(std::min(seconds, kLongest)), is_over);
  }
  if (values_[counter] >= target) return true;
  if (cancelled_) throw Error("wait for counter " + std::to_string(counter) + ": " + reason_);
  return false;
}

void Counters::cancel(const std::string& reason) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
    reason_ = reason;
  }
  changed_.notify_all();
}

}  // namespace octavo
