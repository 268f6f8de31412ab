#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>

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
  workers_.reserve(threads - 1);
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { WorkerLoop(i); });
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
  job_ = &fn;
  tasks_ = tasks;
  next_task_.store(0, std::memory_order_relaxed);
  running_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) generation_.notify_all();
  RunTasks(0);
  const auto patient_until = std::chrono::steady_clock::now() + kPatience;
  while (running_.load(std::memory_order_acquire) != 0) {
    Pause();
    if (std::chrono::steady_clock::now() > patient_until) std::this_thread::yield();
  }
}

void ThreadPool::RunTasks(int worker) {
  while (true) {
    const int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task >= tasks_) return;
    (*job_)(task, worker);
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
    RunTasks(worker);
    running_.fetch_sub(1, std::memory_order_release);
  }
}

int AvailableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return std::max(1U, std::thread::hardware_concurrency());
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace hadal
