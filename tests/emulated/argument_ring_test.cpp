// Small arrays on their way to the device: what the ring still holds is not sent again, and kernels
// read what was sent for them.

#include "kernels/cuda/argument_ring.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/emulated/emulated_device.h"

namespace triphase::emulated {
namespace {

class ArgumentRingTest : public testing::TestWithParam<std::uint64_t> {
 protected:
  static constexpr std::size_t kBytes = 4096;

  // A kernel that keeps the sum of an array of `count` numbers.
  void add_up(const int* numbers, std::size_t count, int* sum) {
    run_on(*stream_, [=] { *sum = std::accumulate(numbers, numbers + count, 0); });
  }
  const int* send(const std::vector<int>& numbers) {
    return ring_.send(std::span<const int>(numbers), *stream_);
  }

  EmulatedDevice device_{DeviceSettings{.schedule = GetParam()}};
  EmulatedHost pinned_{device_, 1};
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

TEST_P(ArgumentRingTest, AnnouncedArraysGoTogether) {
  ring_.begin_step(*stream_);
  const int* one = send({1, 2, 3});
  const int* other = send({4, 5});
  EXPECT_EQ(send({1, 2, 3}), one);
  EXPECT_EQ(device_.counts().uploads, 0);
  ring_.end_announcing(*stream_);
  EXPECT_EQ(send({4, 5}), other);
  EXPECT_EQ(device_.counts().uploads, 1);
  EXPECT_NE(send({4, 6}), other) << "not announced";
  EXPECT_EQ(device_.counts().uploads, 2);
  ring_.begin_step(*stream_);
  EXPECT_EQ(send({1, 2, 3}), one) << "each step's first array has the same place";
  ring_.end_announcing(*stream_);
  EXPECT_EQ(device_.counts().uploads, 3);
  ring_.begin_step(*stream_);
  ring_.end_announcing(*stream_);
  EXPECT_EQ(device_.counts().uploads, 3) << "nothing to send";
}

// Whatever comes after them, and whether they fit at once or not.
TEST_P(ArgumentRingTest, AnnouncedAndKeptArraysStayUntilTheNextStep) {
  constexpr int kSteps = 6;
  constexpr int kLater = 30;  // arrays that were not announced
  constexpr std::size_t kSums = kSteps * 4;
  auto* sums = static_cast<int*>(device_.allocate(kSums * sizeof(int)));
  auto* scratch = static_cast<int*>(device_.allocate(sizeof(int)));
  auto* read = static_cast<int*>(device_.allocate_host(kSums * sizeof(int)));
  std::vector<int> expected;
  for (int step = 0; step < kSteps; ++step) {
    // The fourth step is too large for the ring.
    const std::size_t count = step == 3 ? 3000 : 20;
    const std::vector<int> first(20, step);
    const std::vector<int> second(count, step + 100);
    ring_.begin_step(*stream_);
    const int* sent_first = send(first);
    const int* sent_second = send(second);
    ring_.end_announcing(*stream_);
    const int* kept = nullptr;
    for (int later = 0; later < kLater; ++later) {
      add_up(send(std::vector<int>(20, 1000 + later)), 20, scratch);
      if (later != step) continue;
      // One that was sent is kept too.
      const std::vector<int> again(20, step % 2 == 0 ? 1000 + later : 500 + step);
      kept = ring_.keep(std::span<const int>(again), *stream_);
      EXPECT_EQ(ring_.keep(std::span<const int>(again), *stream_), kept);
    }
    int* to = sums + 4 * step;
    add_up(sent_first, 20, to);
    add_up(sent_second, count, to + 1);
    const std::vector<int> large(step == 4 ? 9000 : 30, 7);
    add_up(send(large), large.size(), to + 2);
    add_up(kept, 20, to + 3);
    expected.insert(expected.end(), {20 * step, static_cast<int>(count) * (step + 100),
                                     7 * static_cast<int>(large.size()),
                                     20 * (step % 2 == 0 ? 1000 + step : 500 + step)});
  }
  device_.copy(read, sums, kSums * sizeof(int), *stream_);
  stream_->synchronize();
  EXPECT_EQ(std::vector<int>(read, read + kSums), expected);
  device_.release(sums, kSums * sizeof(int));
  device_.release(scratch, sizeof(int));
  device_.release_host(read, kSums * sizeof(int));
}

INSTANTIATE_TEST_SUITE_P(Schedules, ArgumentRingTest, testing::Values(0, 1, 2, 3));

}  // namespace
}  // namespace triphase::emulated
