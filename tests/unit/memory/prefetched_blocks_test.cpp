#include "memory/kv/prefetched_blocks.h"

#include <gtest/gtest.h>

namespace triphase {
namespace {

using Source = PrefetchedBlocks::Source;

TEST(PrefetchedBlocks, AreFoundWhereTheyWereReadFromAndNowhereElse) {
  PrefetchedBlocks prefetched(nullptr);
  EXPECT_TRUE(prefetched.empty());
  const Source first{.layer = 0, .block_index = 7, .block_id = 70, .host_block = 3};
  const Source second{.layer = 0, .block_index = 8, .block_id = 71, .host_block = 4};
  const Source deeper{.layer = 1, .block_index = 7, .block_id = 70, .host_block = 3};
  prefetched.add(first, PageId(40));
  prefetched.add(second, PageId(41));
  prefetched.end_range(Ticket{9});
  prefetched.add(deeper, PageId(42));
  prefetched.end_range(Ticket{11});
  EXPECT_EQ(prefetched.ranges(), 2);
  EXPECT_EQ(prefetched.layers(), 2);
  EXPECT_EQ(prefetched.ticket(1).value, 11U);

  ASSERT_TRUE(prefetched.find(first).has_value());
  EXPECT_EQ(prefetched.find(first)->page, PageId(40));
  EXPECT_EQ(prefetched.find(second)->range, 0);
  EXPECT_EQ(prefetched.find(deeper)->page, PageId(42));
  EXPECT_EQ(prefetched.find(deeper)->range, 1);

  Source other = first;
  other.block_id = 72;  // the block ended, and its number is another one's
  EXPECT_FALSE(prefetched.find(other).has_value());
  other = first;
  other.host_block = 5;  // it was away from there in between
  EXPECT_FALSE(prefetched.find(other).has_value());
  other = first;
  other.layer = 2;
  EXPECT_FALSE(prefetched.find(other).has_value());
}

TEST(PrefetchedBlocks, KnowWhatWasNotUsedAndWhichHostBlocksAreRead) {
  PrefetchedBlocks prefetched(nullptr);
  const Source first{.layer = 0, .block_index = 0, .block_id = 1, .host_block = 3};
  const Source deeper{.layer = 1, .block_index = 0, .block_id = 1, .host_block = 3};
  prefetched.add(first, PageId(0));
  prefetched.add(deeper, PageId(1));
  prefetched.end_range(Ticket{1});
  EXPECT_EQ(prefetched.unused(), 2);
  EXPECT_TRUE(prefetched.use(first).has_value());
  EXPECT_TRUE(prefetched.use(first).has_value()) << "two groups may read it";
  EXPECT_EQ(prefetched.unused(), 1);
  Source moved = deeper;
  moved.host_block = 9;
  EXPECT_FALSE(prefetched.use(moved).has_value());
  EXPECT_EQ(prefetched.unused(), 1);
  EXPECT_TRUE(prefetched.reads(0, 3));
  EXPECT_FALSE(prefetched.reads(0, 9));
  EXPECT_FALSE(prefetched.reads(1, 3));
  prefetched.clear();
  EXPECT_TRUE(prefetched.empty());
  EXPECT_FALSE(prefetched.reads(0, 3));
  EXPECT_EQ(prefetched.unused() + prefetched.blocks() + prefetched.layers(), 0);
}

}  // namespace
}  // namespace triphase
