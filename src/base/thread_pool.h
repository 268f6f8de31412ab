// One pool of threads for all of a platform's operators.
//
// Work is cut into tasks whose results do not depend on who runs them; a pool of one thread and a pool of many give the
// same bits (DESIGN: promise 3). Every thread has a stretch of consecutive tasks of its own, taken front to back, so
// that it walks through memory and knows what comes next; whoever is done takes from the back of the others' stretches.
// The caller takes part in the work, and waits only for workers that have joined: one that the system has not woken yet
// delays nobody. Between regions the workers spin for a short while before they sleep: a decode step has a few regions
// a layer, microseconds apart.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
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
  // not throw and must not call ParallelFor of the same pool. One caller at a time. After `task` a worker most often
  // gets task + 1.
  void ParallelFor(int64_t tasks, absl::FunctionRef<void(int64_t task, int worker)> fn);

 private:
  void WorkerLoop(int worker);
  void RunTasks(int worker);

  std::vector<std::thread> workers_;
  const absl::FunctionRef<void(int64_t, int)>* job_ = nullptr;
  struct alignas(64) Stretch {
    std::atomic<uint64_t> range{0};  // tasks left: begin << 32 | end
  };
  std::unique_ptr<Stretch[]> stretches_;             // one a thread
  alignas(64) std::atomic<uint32_t> generation_{0};  // bumped once a region, and once more to stop
  alignas(64) std::atomic<bool> open_{false};        // a region may be joined
  alignas(64) std::atomic<int> joined_{0};           // workers inside the region
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
};

// CPUs this process may use (its affinity mask), at least 1.
int AvailableCpus();

}  // namespace hadal
