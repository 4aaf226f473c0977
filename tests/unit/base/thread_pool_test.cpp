#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

namespace triphase {
namespace {

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const std::int64_t tasks : {0, 1, 2, 1000}) {
      std::vector<std::atomic<int>> hits(static_cast<std::size_t>(tasks));
      pool.parallel_for(tasks, [&](std::int64_t task, int worker) {
        ASSERT_GE(worker, 0);
        ASSERT_LT(worker, threads);
        ++hits[static_cast<std::size_t>(task)];
      });
      for (const auto& hit : hits) EXPECT_EQ(hit, 1);
    }
  }
}

TEST(ThreadPool, AThreadBeginsWithARangeOfItsOwnThenTakesHalfOfWhatAnotherHasLeft) {
  ThreadPool pool(2);
  std::vector<std::vector<std::int64_t>> ran(2);
  std::atomic<bool> first_runs = false;
  std::atomic<bool> third_ran = false;
  pool.parallel_for(8, [&](std::int64_t task, int worker) {
    ran[static_cast<std::size_t>(worker)].push_back(task);
    if (task == 0) first_runs = true;
    // Else the other thread might take all tasks before this one has any.
    while (task == 4 && !first_runs) std::this_thread::yield();
    if (task == 3) third_ran = true;
    while (task == 0 && !third_ran) std::this_thread::yield();
  });
  ASSERT_GE(ran[1].size(), 6U);
  EXPECT_EQ(ran[0].front(), 0);
  ran[1].resize(6);
  EXPECT_EQ(ran[1], (std::vector<std::int64_t>{4, 5, 6, 7, 2, 3}));
}

TEST(ThreadPool, ManyShortLoopsInARow) {
  ThreadPool pool(3);
  std::atomic<std::int64_t> sum = 0;
  for (int loop = 0; loop < 5000; ++loop) {
    pool.parallel_for(4, [&](std::int64_t task, int) { sum += task; });
  }
  EXPECT_EQ(sum, 5000 * 6);
}

TEST(ThreadPool, RethrowsAndGoesOn) {
  ThreadPool pool(2);
  EXPECT_THROW(pool.parallel_for(100,
                                 [](std::int64_t task, int) {
                                   if (task == 37) throw std::runtime_error("task 37");
                                 }),
               std::runtime_error);
  std::atomic<int> runs = 0;
  pool.parallel_for(10, [&](std::int64_t, int) { ++runs; });
  EXPECT_EQ(runs, 10);
}

}  // namespace
}  // namespace triphase
