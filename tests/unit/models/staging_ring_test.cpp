#include "models/staging_ring.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace triphase {
namespace {

TEST(StagingRing, HandsOutPagesInATurnAndWrapsWhereTheEndIsTooShort) {
  StagingRing ring;
  ring.reset(10);
  EXPECT_EQ(ring.take(4), 0);
  EXPECT_EQ(ring.take(4), 4);
  EXPECT_EQ(ring.take(4), std::nullopt) << "two pages are left at the end";
  ring.give_back_oldest();
  EXPECT_EQ(ring.take(4), 0);
  EXPECT_EQ(ring.take(1), std::nullopt) << "the range after the newest one is held";
  ring.give_back_oldest();
  EXPECT_EQ(ring.take(6), 4);
  EXPECT_EQ(ring.held(), 2);
}

TEST(StagingRing, RangesWithoutPagesTakeNothing) {
  StagingRing ring;
  ring.reset(2);
  EXPECT_TRUE(ring.take(0).has_value());
  EXPECT_EQ(ring.take(2), 0);
  EXPECT_TRUE(ring.take(0).has_value());
  EXPECT_EQ(ring.take(1), std::nullopt);
  ring.give_back_oldest();
  EXPECT_EQ(ring.take(1), std::nullopt);
  ring.give_back_oldest();
  EXPECT_EQ(ring.take(1), 0);
}

TEST(StagingRing, RefusesWhatIsLargerThanItself) {
  StagingRing ring;
  ring.reset(3);
  EXPECT_EQ(ring.take(4), std::nullopt);
  EXPECT_EQ(ring.held(), 0);
}

TEST(StagingRing, HeldRangesNeverOverlap) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    const auto pages = static_cast<std::int64_t>(1 + random() % 40);
    StagingRing ring;
    ring.reset(pages);
    struct Held {
      std::int64_t begin, count;
    };
    std::deque<Held> held;
    for (int i = 0; i < 300; ++i) {
      if (!held.empty() && random() % 3 == 0) {
        ring.give_back_oldest();
        held.pop_front();
        continue;
      }
      const auto count =
          static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(pages + 1));
      const std::optional<std::int64_t> begin = ring.take(count);
      if (!begin) {
        bool other = false;
        for (const Held& range : held) other = other || range.count > 0;
        EXPECT_TRUE(other) << count << " of " << pages << " free pages were refused";
        continue;
      }
      EXPECT_GE(*begin, 0);
      EXPECT_LE(*begin + count, pages);
      for (const Held& range : held) {
        if (count == 0 || range.count == 0) continue;
        EXPECT_TRUE(*begin + count <= range.begin || range.begin + range.count <= *begin);
      }
      held.push_back({*begin, count});
    }
  }
}

}  // namespace
}  // namespace triphase
