#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <system_error>

#include "base/log.h"
#include "base/status.h"

namespace hadal {
namespace {

// Long enough to bridge the serial stretches of a decode step, short enough not to burn an idle machine.
constexpr auto kSpin = std::chrono::microseconds(100);
// Whoever waits longer than this offers its core: on a loaded machine the thread waited for may need it.
constexpr auto kPatience = std::chrono::microseconds(20);

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  HADAL_CHECK(threads >= 1);
  stretches_ = std::make_unique<Stretch[]>(threads);
  workers_.reserve(threads - 1);
  for (int i = 1; i < threads; ++i) {
    try {
      workers_.emplace_back([this, i] { WorkerLoop(i); });
    } catch (const std::system_error& error) {
      // A limit of the process or the container. The work is done by those that there are.
      spdlog::warn("{} of {} threads could be started: {}", i, threads, error.what());
      return;
    }
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(int64_t tasks, absl::FunctionRef<void(int64_t, int)> fn) {
  if (tasks <= 0) return;
  if (workers_.empty() || tasks == 1) {
    for (int64_t task = 0; task < tasks; ++task) fn(task, 0);
    return;
  }
  HADAL_CHECK(tasks < INT32_MAX);
  job_ = &fn;
  const int64_t threads = this->threads();
  for (int64_t i = 0; i < threads; ++i) {
    const auto begin = static_cast<uint64_t>(tasks * i / threads);
    const auto end = static_cast<uint64_t>(tasks * (i + 1) / threads);
    stretches_[i].range.store(begin << 32 | end, std::memory_order_relaxed);
  }
  open_.store(true, std::memory_order_seq_cst);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) generation_.notify_all();
  RunTasks(0);
  // Closed before the count is read, as a worker counts itself before it looks whether the region is open: either it is
  // seen here and waited for, or it sees that there is nothing to do (both sequentially consistent).
  open_.store(false, std::memory_order_seq_cst);
  const auto patient_until = std::chrono::steady_clock::now() + kPatience;
  while (joined_.load(std::memory_order_seq_cst) != 0) {
    Pause();
    if (std::chrono::steady_clock::now() > patient_until) std::this_thread::yield();
  }
}

void ThreadPool::RunTasks(int worker) {
  const int count = threads();
  for (int i = 0; i < count; ++i) {
    const bool own = i == 0;
    std::atomic<uint64_t>& range = stretches_[(worker + i) % count].range;
    uint64_t left = range.load(std::memory_order_relaxed);
    while (true) {
      const uint64_t begin = left >> 32;
      const uint64_t end = left & UINT32_MAX;
      if (begin >= end) break;
      const uint64_t rest = own ? (begin + 1) << 32 | end : begin << 32 | (end - 1);
      if (!range.compare_exchange_weak(left, rest, std::memory_order_relaxed)) continue;
      (*job_)(static_cast<int64_t>(own ? begin : end - 1), worker);
      left = range.load(std::memory_order_relaxed);
    }
  }
}

void ThreadPool::WorkerLoop(int worker) {
  uint32_t seen = 0;
  while (true) {
    const auto start = std::chrono::steady_clock::now();
    while (generation_.load(std::memory_order_acquire) == seen) {
      Pause();
      const auto waited = std::chrono::steady_clock::now() - start;
      if (waited > kPatience) std::this_thread::yield();
      if (waited > kSpin) {
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        generation_.wait(seen, std::memory_order_seq_cst);
        sleepers_.fetch_sub(1, std::memory_order_seq_cst);
      }
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    joined_.fetch_add(1, std::memory_order_seq_cst);
    if (open_.load(std::memory_order_seq_cst)) RunTasks(worker);
    joined_.fetch_sub(1, std::memory_order_release);
  }
}

int AvailableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return std::max(1U, std::thread::hardware_concurrency());
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace hadal
