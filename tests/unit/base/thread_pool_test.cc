#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace hadal {
namespace {

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int64_t tasks : {0, 1, 2, 7, 1000}) {
      std::vector<int> hits(tasks, 0);
      pool.ParallelFor(tasks, [&](int64_t task, int worker) {
        ASSERT_GE(worker, 0);
        ASSERT_LT(worker, threads);
        ++hits[task];
      });
      for (int hit : hits) EXPECT_EQ(hit, 1);
    }
  }
}

TEST(ThreadPool, WakesSleepingWorkersManyTimes) {
  ThreadPool pool(3);
  std::vector<int64_t> sums(64, 0);
  for (int round = 0; round < 2000; ++round) {
    if (round % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    pool.ParallelFor(64, [&](int64_t task, int) { sums[task] += task; });
  }
  for (int64_t task = 0; task < 64; ++task) EXPECT_EQ(sums[task], 2000 * task);
}

}  // namespace
}  // namespace hadal
