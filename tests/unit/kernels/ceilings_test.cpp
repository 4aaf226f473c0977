#include "kernels/cpu/ceilings.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <vector>

namespace triphase {
namespace {

// Durations, not moments; the whole measurement reads a GiB, which `triphase profile` does.
TEST(Ceilings, AreMeasuredInSecondsOfWork) {
  const std::vector<std::byte> data(std::size_t{8} << 20, std::byte{1});
  for (const int threads : {1, 2}) {
    ThreadPool pool(threads);
    const double seconds = cpu::read_seconds(pool, data, 3);
    EXPECT_GT(seconds, 0.0);
    EXPECT_LT(seconds, 60.0);
    EXPECT_GT(cpu::peak_flops(pool, 1), 1e6);
  }
}

// As under ulimit -t, where the clock of a process stands still between two ticks.
TEST(Ceilings, TimeOfOneThreadMovesUnderALimitOfCpuTime) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_CPU, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = std::min<rlim_t>(before.rlim_max, 1'000'000);
  ASSERT_EQ(setrlimit(RLIMIT_CPU, &limit), 0);
  const ThreadPool pool(1);
  int moves = 0;
  for (int read = 0; read < 1000; ++read) {
    const double start = cpu::now_seconds(pool);
    moves += cpu::now_seconds(pool) > start ? 1 : 0;
  }
  EXPECT_EQ(setrlimit(RLIMIT_CPU, &before), 0);
  EXPECT_GT(moves, 500);
}

}  // namespace
}  // namespace triphase
