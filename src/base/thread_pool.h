// One pool of threads for all of a platform's operators.
//
// Work is cut into tasks whose results do not depend on who runs them; a pool of one thread and a pool of many give the
// same bits (DESIGN: promise 3). The caller takes part in the work. Between regions the workers spin for a short while
// before they sleep: a decode step has a few regions a layer, microseconds apart.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace hadal {

class ThreadPool {
 public:
  // threads >= 1 counts the caller.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs fn(task, worker) for every task in [0, tasks), worker in [0, threads()), and waits for all of them. fn must
  // not throw and must not call ParallelFor of the same pool. One caller at a time.
  void ParallelFor(int64_t tasks, absl::FunctionRef<void(int64_t task, int worker)> fn);

 private:
  void WorkerLoop(int worker);
  void RunTasks(int worker);

  std::vector<std::thread> workers_;
  const absl::FunctionRef<void(int64_t, int)>* job_ = nullptr;
  int64_t tasks_ = 0;
  alignas(64) std::atomic<int64_t> next_task_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};  // bumped once a region, and once more to stop
  alignas(64) std::atomic<int> running_{0};          // workers still inside the region
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
};

// CPUs this process may use (its affinity mask), at least 1.
int AvailableCpus();

}  // namespace hadal
