#include "runtime/thread_pool.h"

#include <unistd.h>

#include <chrono>

#include "runtime/error.h"

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#endif

namespace octavo {
namespace {

// Longer than what a decode step takes outside of the program (Python: 0.6 ms for one request, 1 ms
// for 32): a worker that sleeps takes 20 to 40 us to wake.
constexpr auto kSpinTime = std::chrono::microseconds(2000);
constexpr int kPausesPerCheck = 64;
constexpr int kPausesBeforeYield = 4096;  // some 50 us: another process holds a thread's CPU

void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

void pin([[maybe_unused]] std::thread::native_handle_type thread, [[maybe_unused]] int cpu) {
#ifdef __linux__
  cpu_set_t set;
  CPU_ZERO(&set);
  if (cpu < 0 || cpu >= CPU_SETSIZE) return;
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(thread, sizeof set, &set);  // best effort
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads, std::vector<int> cpus)
    : num_threads_(num_threads), cpus_(std::move(cpus)), process_(getpid()) {
  if (num_threads < 1 || num_threads > 1024) {
    throw Error("num_threads=" + std::to_string(num_threads) + " must be in 1…1024");
  }
  if (static_cast<int>(cpus_.size()) != num_threads) cpus_.clear();
  flags_ = std::make_unique<Flag[]>(num_threads);
  workers_.reserve(num_threads - 1);
  for (int i = 1; i < num_threads; ++i) {
    workers_.emplace_back([this, i] { work(i); });
    if (!cpus_.empty()) pin(workers_.back().native_handle(), cpus_[i]);
  }
}

ThreadPool::~ThreadPool() { close(); }

void ThreadPool::close() {
  const std::lock_guard<std::mutex> lock(run_mutex_);
  if (closed_) return;
  closed_ = true;
  if (getpid() != process_) {  // a forked child has no workers to join
    for (std::thread& worker : workers_) worker.detach();
    return;
  }
  stop_ = true;
  generation_.count.fetch_add(1);
  {
    const std::lock_guard<std::mutex> sleep_lock(sleep_mutex_);
    wake_.notify_all();
  }
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::wait_for(const std::atomic<std::uint64_t>& flag, std::uint64_t count) {
  for (int pauses = 0; flag.load(std::memory_order_acquire) < count; ++pauses) {
    cpu_pause();
    if (pauses >= kPausesBeforeYield) std::this_thread::yield();
  }
}

void ThreadPool::start(Entry entry, void* job, bool alone) {
  const std::lock_guard<std::mutex> lock(run_mutex_);
  require(!closed_, "the CPU back end was closed");
  require(getpid() == process_,
          "a CPU back end cannot be used in a forked process; create another");
  if (alone || num_threads_ == 1) return entry(job, 0);
  leave_callers_cpu();
  entry_ = entry;
  job_ = job;
  generation_.count.fetch_add(1);  // before sleepers_ is read: see wait_for_job
  if (sleepers_.load() > 0) {
    const std::lock_guard<std::mutex> sleep_lock(sleep_mutex_);
    wake_.notify_all();
  }
  entry(job, 0);
  barrier(0);
}

// The caller may sit on a worker's CPU; that worker takes the spare one.
void ThreadPool::leave_callers_cpu() {
#ifdef __linux__
  if (cpus_.empty()) return;
  const int cpu = sched_getcpu();
  if (cpu == cpus_[0]) return;
  for (int i = 1; i < num_threads_; ++i) {
    if (cpus_[i] != cpu) continue;
    std::swap(cpus_[0], cpus_[i]);
    pin(workers_[i - 1].native_handle(), cpus_[i]);
    return;
  }
#endif
}

void ThreadPool::work(int thread) {
  for (std::uint64_t seen = 0;; ++seen) {
    wait_for_job(seen);
    if (stop_) return;
    entry_(job_, thread);
    barrier(thread);
  }
}

void ThreadPool::wait_for_job(std::uint64_t seen) {
  using Clock = std::chrono::steady_clock;
  const auto limit = Clock::now() + kSpinTime;
  do {
    for (int i = 0; i < kPausesPerCheck; ++i) {
      if (generation_.count.load(std::memory_order_acquire) > seen) return;
      cpu_pause();
    }
  } while (Clock::now() < limit);
  std::unique_lock<std::mutex> lock(sleep_mutex_);
  // Announced before the generation is read again, as the caller publishes it before reading
  // sleepers_: one of the two sees the other.
  sleepers_.fetch_add(1);
  wake_.wait(lock, [&] { return generation_.count.load() > seen; });
  sleepers_.fetch_sub(1);
}

}  // namespace octavo
