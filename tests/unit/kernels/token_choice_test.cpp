#include "kernels/token_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "base/error.h"

namespace triphase {
namespace {

using testing::ElementsAre;

std::vector<std::int32_t> top(const std::vector<float>& scores, std::int64_t count,
                              const std::vector<IndexRange>& forced = {}) {
  std::vector<std::uint32_t> scratch;
  std::vector<std::int32_t> to;
  choose_top(scores, count, forced, scratch, to);
  return to;
}

TEST(ChooseTop, TiesGoToTheSmallestIndex) {
  EXPECT_THAT(top({0, 0, 0, 0}, 2), ElementsAre(0, 1));
  EXPECT_THAT(top({1, 0.0F, -0.0F, 2, 0}, 3), ElementsAre(0, 1, 3));
  EXPECT_THAT(top({1, 2, 2, 2, 3}, 3), ElementsAre(1, 2, 4));
  EXPECT_THAT(top({-1, -2, -3}, 1), ElementsAre(0));
  EXPECT_THAT(top({}, 4), ElementsAre());
  EXPECT_THAT(top({1, 2}, 9), ElementsAre(0, 1));
  EXPECT_THAT(top({1, 2}, -1), ElementsAre());
}

TEST(ChooseTop, ForcedRangesAreAlwaysInAndDoNotCount) {
  EXPECT_THAT(top({9, 0, 8, 0, 7, 0}, 1, {{3, 4}, {5, 6}}), ElementsAre(0, 3, 5));
  EXPECT_THAT(top({9, 0, 8, 0, 7, 0}, 0, {{1, 2}, {4, 9}}), ElementsAre(1, 4, 5));
  EXPECT_THROW((void)top({1, 2, 3}, 1, {{1, 2}, {0, 1}}), Error);
}

TEST(ChooseTop, NanIsLowestAndInfinitiesAreOrdered) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_THAT(top({nan, -infinity, infinity, 0}, 3), ElementsAre(1, 2, 3));
}

TEST(ChooseTop, AgreesWithSortingOnRandomScores) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    const auto size = static_cast<std::int64_t>(random() % 300);
    std::vector<float> scores;
    const int kinds = static_cast<int>(random() % 40) + 1;
    for (std::int64_t i = 0; i < size; ++i) {
      // Few distinct values (ties), or values that differ in the last bits only.
      scores.push_back(round % 2 == 0 ? static_cast<float>(static_cast<int>(random()) % kinds)
                                      : 1.0F + static_cast<float>(random() % 50) * 0x1p-23F);
    }
    std::vector<IndexRange> forced;
    std::int64_t at = 0;
    while (size > 0 && forced.size() < random() % 3) {
      const std::int64_t begin = at + static_cast<std::int64_t>(random() % 40);
      const std::int64_t end = begin + static_cast<std::int64_t>(random() % 20);
      forced.push_back({begin, end});
      at = end;
    }
    const auto count = static_cast<std::int64_t>(random() % 80);
    std::vector<std::int32_t> order;
    std::vector<std::int32_t> expected;
    for (std::int32_t i = 0; i < size; ++i) {
      const bool in = std::any_of(forced.begin(), forced.end(),
                                  [&](const IndexRange& r) { return i >= r.begin && i < r.end; });
      (in ? expected : order).push_back(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
    });
    order.resize(std::min(order.size(), static_cast<std::size_t>(count)));
    expected.insert(expected.end(), order.begin(), order.end());
    std::sort(expected.begin(), expected.end());
    ASSERT_EQ(top(scores, count, forced), expected) << "round " << round;
  }
}

}  // namespace
}  // namespace triphase
