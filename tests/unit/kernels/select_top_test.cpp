#include <gmock/gmock.h>

#include <limits>

#include "kernels/cpu/cpu_sparse_kernels.h"
#include "tests/support/top_indices.h"
#include "tests/unit/kernels/kernel_test.h"

namespace triphase {
namespace {

using testing::ElementsAre;

class SelectTopTest : public KernelTest {};

std::vector<std::int32_t> top(const std::vector<float>& scores, std::int64_t count) {
  const auto size = static_cast<std::int64_t>(scores.size());
  std::vector<std::int32_t> scratch(static_cast<std::size_t>(select_top_words(size)), -1);
  std::vector<std::int32_t> to(static_cast<std::size_t>(count));
  cpu::select_top(scores.data(), size, count, scratch.data(), to.data());
  return to;
}

TEST_P(SelectTopTest, TiesGoToTheSmallestIndex) {
  EXPECT_THAT(top({0, 0, 0, 0}, 2), ElementsAre(0, 1));
  EXPECT_THAT(top({1, 0.0F, -0.0F, 2, 0}, 3), ElementsAre(0, 1, 3));
  EXPECT_THAT(top({1, 2, 2, 2, 3}, 3), ElementsAre(1, 2, 4));
  EXPECT_THAT(top({-1, -2, -3}, 1), ElementsAre(0));
  EXPECT_THAT(top({}, 0), ElementsAre());
  EXPECT_THAT(top({1, 2}, 2), ElementsAre(0, 1));
}

TEST_P(SelectTopTest, NanIsLowestAndInfinitiesAreOrdered) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_THAT(top({nan, -infinity, infinity, 0}, 3), ElementsAre(1, 2, 3));
}

TEST_P(SelectTopTest, AgreesWithSortingOnRandomScores) {
  for (int round = 0; round < 3000; ++round) {
    // Long ones now and then: of these a sample is looked at first.
    const std::uint32_t longest = round % 50 == 0 ? 9000 : 300;
    const auto size = static_cast<std::int64_t>(random_() % longest);
    std::vector<float> scores;
    const int kinds = static_cast<int>(random_() % 40) + 1;
    for (std::int64_t i = 0; i < size; ++i) {
      // Few distinct values (ties), or values that differ in the last bits only.
      scores.push_back(round % 2 == 0 ? static_cast<float>(static_cast<int>(random_()) % kinds)
                                      : 1.0F + static_cast<float>(random_() % 50) * 0x1p-23F);
    }
    const auto count = static_cast<std::int64_t>(random_()) % (size + 1);
    ASSERT_EQ(top(scores, count), top_indices(scores, count)) << "round " << round;
  }
}

TRIPHASE_KERNEL_TARGETS(SelectTopTest);

}  // namespace
}  // namespace triphase
