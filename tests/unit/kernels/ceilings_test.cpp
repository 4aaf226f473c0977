#include "kernels/cpu/ceilings.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace triphase
