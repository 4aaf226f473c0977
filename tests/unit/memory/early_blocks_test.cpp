#include "memory/kv/early_blocks.h"

#include <gtest/gtest.h>

namespace triphase {
namespace {

using Source = EarlyBlocks::Source;

TEST(EarlyBlocks, AreFoundWhereTheyWereReadFromAndNowhereElse) {
  EarlyBlocks early;
  EXPECT_TRUE(early.empty());
  const Source first{.layer = 0, .block_index = 7, .block_id = 70, .host_block = 3};
  const Source second{.layer = 0, .block_index = 8, .block_id = 71, .host_block = 4};
  const Source deeper{.layer = 1, .block_index = 7, .block_id = 70, .host_block = 3};
  early.add(first, PageId(40));
  early.add(second, PageId(41));
  early.end_range(Ticket{9});
  early.add(deeper, PageId(42));
  early.end_range(Ticket{11});
  EXPECT_EQ(early.ranges(), 2);
  EXPECT_EQ(early.layers(), 2);
  EXPECT_EQ(early.ticket(1).value, 11U);

  ASSERT_TRUE(early.find(first).has_value());
  EXPECT_EQ(early.find(first)->page, PageId(40));
  EXPECT_EQ(early.find(second)->range, 0);
  EXPECT_EQ(early.find(deeper)->page, PageId(42));
  EXPECT_EQ(early.find(deeper)->range, 1);

  Source other = first;
  other.block_id = 72;  // the block ended, and its number is another one's
  EXPECT_FALSE(early.find(other).has_value());
  other = first;
  other.host_block = 5;  // it was away from there in between
  EXPECT_FALSE(early.find(other).has_value());
  other = first;
  other.layer = 2;
  EXPECT_FALSE(early.find(other).has_value());
}

TEST(EarlyBlocks, KnowWhatWasNotUsedAndWhichHostBlocksAreRead) {
  EarlyBlocks early;
  const Source first{.layer = 0, .block_index = 0, .block_id = 1, .host_block = 3};
  const Source deeper{.layer = 1, .block_index = 0, .block_id = 1, .host_block = 3};
  early.add(first, PageId(0));
  early.add(deeper, PageId(1));
  early.end_range(Ticket{1});
  EXPECT_EQ(early.unused(), 2);
  EXPECT_TRUE(early.use(first).has_value());
  EXPECT_TRUE(early.use(first).has_value()) << "two groups may read it";
  EXPECT_EQ(early.unused(), 1);
  Source moved = deeper;
  moved.host_block = 9;
  EXPECT_FALSE(early.use(moved).has_value());
  EXPECT_EQ(early.unused(), 1);
  EXPECT_TRUE(early.reads(0, 3));
  EXPECT_FALSE(early.reads(0, 9));
  EXPECT_FALSE(early.reads(1, 3));
  early.clear();
  EXPECT_TRUE(early.empty());
  EXPECT_FALSE(early.reads(0, 3));
  EXPECT_EQ(early.unused() + early.blocks() + early.layers(), 0);
}

}  // namespace
}  // namespace triphase
