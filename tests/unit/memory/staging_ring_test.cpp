#include "memory/kv/staging_ring.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace triphase {
namespace {

TEST(StagingRing, HandsOutPagesInATurnAndWrapsWhereTheEndIsTooShort) {
  StagingRing ring;
  ring.reset(10);
  EXPECT_EQ(ring.take(4, 0), 0);
  EXPECT_EQ(ring.take(4, 1), 4);
  EXPECT_EQ(ring.take(4, 2), std::nullopt) << "two pages are left at the end";
  ring.give_back_before(1);
  EXPECT_EQ(ring.take(4, 2), 0);
  EXPECT_EQ(ring.take(1, 3), std::nullopt) << "the range after the newest one is held";
  ring.give_back_before(2);
  EXPECT_EQ(ring.take(6, 3), 4);
  EXPECT_EQ(ring.take(1, 4), std::nullopt) << "both ranges are held";
}

TEST(StagingRing, RangesWithoutPagesTakeNothing) {
  StagingRing ring;
  ring.reset(2);
  EXPECT_TRUE(ring.take(0, 0).has_value());
  EXPECT_EQ(ring.take(2, 1), 0);
  EXPECT_TRUE(ring.take(0, 2).has_value());
  EXPECT_EQ(ring.take(1, 3), std::nullopt);
  ring.give_back_before(1);
  EXPECT_EQ(ring.take(1, 3), std::nullopt);
  ring.give_back_before(2);
  EXPECT_EQ(ring.take(1, 3), 0);
}

TEST(StagingRing, ARangeIsHeldUntilItsLastReaderIsPast) {
  StagingRing ring;
  ring.reset(6);
  EXPECT_EQ(ring.take(2, 10), 0);
  EXPECT_EQ(ring.take(2, 11), 2);
  EXPECT_EQ(ring.take(2, 12), 4);
  ring.give_back_before(10);
  EXPECT_EQ(ring.take(1, 13), std::nullopt);
  // Units are numbered anew: the first range is read longest.
  ring.set_reader(0, 2);
  ring.set_reader(1, 0);
  ring.set_reader(2, 1);
  ring.give_back_before(2);
  EXPECT_EQ(ring.take(1, 3), std::nullopt) << "those after it wait for it";
  ring.give_back_before(3);
  EXPECT_EQ(ring.take(6, 3), 0) << "all are free";
}

TEST(StagingRing, RefusesWhatIsLargerThanItself) {
  StagingRing ring;
  ring.reset(3);
  EXPECT_EQ(ring.take(4, 0), std::nullopt);
  EXPECT_EQ(ring.take(3, 0), 0) << "nothing is held";
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
    std::int64_t read = 0;
    for (int i = 0; i < 300; ++i) {
      if (!held.empty() && random() % 3 == 0) {
        ring.give_back_before(++read);
        held.pop_front();
        continue;
      }
      const auto count =
          static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(pages + 1));
      const std::optional<std::int64_t> begin =
          ring.take(count, read + static_cast<std::int64_t>(held.size()));
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
