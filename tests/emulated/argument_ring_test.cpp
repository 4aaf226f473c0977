// Small arrays on their way to the device: what the ring still holds is not sent again, and kernels
// read what was sent for them.

#include "kernels/cuda/argument_ring.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "memory/pinned_host.h"
#include "tests/emulated/emulated_device.h"
#include "tests/emulated/emulator.h"

namespace triphase::emulated {
namespace {

class ArgumentRingTest : public testing::TestWithParam<std::uint64_t> {
 protected:
  static constexpr std::size_t kBytes = 4096;

  // A kernel that keeps the sum of an array of `count` numbers.
  void add_up(const int* numbers, std::size_t count, int* sum) {
    run_on(stream_handle(*stream_), [=] { *sum = std::accumulate(numbers, numbers + count, 0); });
  }
  const int* send(const std::vector<int>& numbers) {
    return ring_.send(std::span<const int>(numbers), *stream_);
  }

  EmulatedDevice device_{DeviceSettings{.schedule = GetParam()}};
  PinnedHostDevice pinned_{device_, device_.pinning(), 1};
  std::unique_ptr<Stream> stream_ = device_.make_stream();
  cuda::ArgumentRing ring_{device_, pinned_, kBytes};
};

TEST_P(ArgumentRingTest, AnArrayThatTheRingHoldsIsNotSentAgain) {
  std::vector<int> one = {1, 2, 3, 4};
  const int* place = send(one);
  EXPECT_EQ(send(std::vector<int>{1, 2, 3, 4}), place);
  EXPECT_EQ(device_.counts().uploads, 1);
  EXPECT_NE(send({1, 2, 3}), place) << "shorter";
  one[2] = 30;
  const int* other = send(one);
  EXPECT_NE(other, place) << "changed since";
  EXPECT_EQ(send({1, 2, 3, 4}), place);
  EXPECT_EQ(send({1, 2, 30, 4}), other);
  EXPECT_EQ(device_.counts().uploads, 3);
}

TEST_P(ArgumentRingTest, KernelsReadWhatWasSentForThemWhenTheRingComesRound) {
  constexpr int kArrays = 60;  // of 16 places
  auto* sums = static_cast<int*>(device_.allocate(kArrays * sizeof(int)));
  auto* read = static_cast<int*>(device_.allocate_host(kArrays * sizeof(int)));
  std::vector<int> expected;
  for (int i = 0; i < kArrays; ++i) {
    // Every third array is the same.
    const std::vector<int> numbers(20, i % 3 == 0 ? 7 : i);
    add_up(send(numbers), numbers.size(), sums + i);
    expected.push_back(20 * numbers[0]);
  }
  device_.copy(read, sums, kArrays * sizeof(int), *stream_);
  stream_->synchronize();
  EXPECT_EQ(std::vector<int>(read, read + kArrays), expected);
  // 40 arrays that differ, and the same one once each time round.
  EXPECT_GT(device_.counts().uploads, 41);
  EXPECT_LT(device_.counts().uploads, 48);
  device_.release(sums, kArrays * sizeof(int));
  device_.release_host(read, kArrays * sizeof(int));
}

INSTANTIATE_TEST_SUITE_P(Schedules, ArgumentRingTest, testing::Values(0, 1, 2, 3));

}  // namespace
}  // namespace triphase::emulated
