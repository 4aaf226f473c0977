#include "memory/kv/transposed_k.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "memory/kv/kv_memory.h"

namespace triphase {
namespace {

SequenceId line_of(KvBook& kv, std::int64_t tokens, TokenId first) {
  std::vector<TokenId> prompt(static_cast<std::size_t>(tokens));
  std::iota(prompt.begin(), prompt.end(), first);
  const SequenceId id = kv.admit(prompt, tokens, 0, {.host_blocks = tokens / 4}).sequence;
  kv.append(id, tokens);
  return id;
}

TEST(TransposedK, ABlockKeepsItsPlaceWhereverItGoes) {
  KvBook kv({.block_tokens = 4, .device_blocks = 6, .host_blocks = 8});
  TransposedK columns(2, 2, kv.pool().capacity());
  const SequenceId line = line_of(kv, 12, 0);
  EXPECT_EQ(columns.find(kv, line, 0), TransposedK::kNone);
  const std::int32_t place = columns.take(kv, line, 0);
  EXPECT_EQ(columns.take(kv, line, 0), place);
  EXPECT_FALSE(columns.is_ready(LayerId(1), place));
  columns.ready(LayerId(1))[place] = 1;
  EXPECT_FALSE(columns.is_ready(LayerId(0), place));
  KvMoves moves;
  kv.placer(moves).offload(line, 1);
  kv.finish_moves();
  EXPECT_EQ(columns.find(kv, line, 0), place);
  EXPECT_TRUE(columns.is_ready(LayerId(1), place));
  EXPECT_NE(columns.take(kv, line, 1), place);
  EXPECT_EQ(columns.take(kv, line, 2), TransposedK::kNone) << "there are two places";
  EXPECT_EQ(columns.peak(), 2);
}

TEST(TransposedK, APlaceOfABlockThatIsGoneGoesToAnotherEmpty) {
  KvBook kv({.block_tokens = 4, .device_blocks = 3, .host_blocks = 8});
  TransposedK columns(2, 2, kv.pool().capacity());
  for (TokenId first = 0; first < 1000; first += 100) {
    columns.begin_step();
    const SequenceId line = line_of(kv, 12, first);
    for (const std::int64_t block : {0, 1}) {
      ASSERT_EQ(columns.find(kv, line, block), TransposedK::kNone) << "another block's place";
      const std::int32_t place = columns.take(kv, line, block);
      ASSERT_NE(place, TransposedK::kNone);
      for (const LayerId layer : {LayerId(0), LayerId(1)}) {
        EXPECT_FALSE(columns.is_ready(layer, place));
        columns.ready(layer)[place] = 1;
      }
    }
    KvMoves moves;
    kv.release(line, moves);
  }
}

TEST(TransposedK, LooksForPlacesOfBlocksThatAreGoneOnceAStep) {
  KvBook kv({.block_tokens = 4, .device_blocks = 9, .host_blocks = 8});
  TransposedK columns(1, 1, kv.pool().capacity());
  const SequenceId first = line_of(kv, 4, 0);
  const SequenceId second = line_of(kv, 4, 100);
  const std::int32_t place = columns.take(kv, first, 0);
  ASSERT_NE(place, TransposedK::kNone);
  columns.begin_step();
  EXPECT_EQ(columns.take(kv, second, 0), TransposedK::kNone);
  KvMoves moves;
  kv.release(first, moves);
  // Its block may be kept for later prompts until another one wants its page.
  const SequenceId third = line_of(kv, 28, 200);
  EXPECT_EQ(columns.take(kv, third, 0), TransposedK::kNone) << "looked for in this step already";
  columns.begin_step();
  EXPECT_EQ(columns.take(kv, third, 0), place);
}

TEST(TransposedK, CountsLeadingPlacesThatAreWrittenInEveryLayer) {
  KvBook kv({.block_tokens = 4, .device_blocks = 6, .host_blocks = 8});
  TransposedK columns(3, 2, kv.pool().capacity());
  const SequenceId line = line_of(kv, 12, 0);
  std::vector<PageId> places;
  for (const std::int64_t block : {0, 1, 2}) places.emplace_back(columns.take(kv, line, block));
  const auto write = [&](LayerId layer, std::size_t block) {
    columns.ready(layer)[places[block].value] = 1;
  };
  for (const std::size_t block : {0, 1, 2}) write(LayerId(0), block);
  EXPECT_EQ(columns.count_ready(places, LayerId(1)), 0) << "not in the last layer";
  write(LayerId(1), 0);
  write(LayerId(1), 2);
  EXPECT_EQ(columns.count_ready(places, LayerId(1)), 1);
  write(LayerId(1), 1);
  EXPECT_EQ(columns.count_ready(places, LayerId(1)), 3);
  EXPECT_EQ(columns.count_ready(std::vector{places[0], PageId(), places[1]}, LayerId(1)), 1);
  EXPECT_EQ(columns.forgotten(), 0U);
  columns.forget(kv, line, LayerId(0), 1);
  EXPECT_EQ(columns.forgotten(), 1U);
  columns.forget(kv, line, LayerId(0), 1);
  EXPECT_EQ(columns.forgotten(), 1U) << "nothing was written";
  columns.forget(kv, line, LayerId(1), 1);
  EXPECT_EQ(columns.count_ready(places, LayerId(1)), 1);
}

TEST(TransposedK, BlocksOfASequenceLieSideBySideWhereThereIsRoom) {
  KvBook kv({.block_tokens = 4, .device_blocks = 20, .host_blocks = 20});
  TransposedK columns(11, 3, kv.pool().capacity(), 4);
  const SequenceId first = line_of(kv, 24, 0);
  const SequenceId second = line_of(kv, 24, 100);
  // Two lines take turns, as in steps that close a block of each.
  for (const std::int64_t block : {0, 1, 2, 3, 4}) {
    for (const SequenceId line : {first, second}) {
      ASSERT_NE(columns.take(kv, line, block), TransposedK::kNone) << block;
    }
  }
  for (const SequenceId line : {first, second}) {
    const std::int32_t begin = columns.find(kv, line, 0);
    for (const std::int64_t block : {1, 2, 3}) {
      EXPECT_EQ(columns.find(kv, line, block), begin + block);
    }
    EXPECT_EQ(begin % 4, 0);
  }
  EXPECT_NE(columns.take(kv, first, 5), TransposedK::kNone) << "the eleventh place";
  EXPECT_EQ(columns.take(kv, second, 5), TransposedK::kNone);
  EXPECT_EQ(columns.peak(), 11);
  // A line that is gone leaves whole groups to the next.
  KvMoves moves;
  kv.release(first, moves);
  const SequenceId third = line_of(kv, 56, 200);
  columns.begin_step();
  const std::int32_t begin = columns.take(kv, third, 0);
  ASSERT_NE(begin, TransposedK::kNone);
  EXPECT_EQ(begin % 4, 0);
  EXPECT_EQ(columns.take(kv, third, 1), begin + 1);
}

// More lines than groups: a line begins in the largest part of a group that nobody uses.
TEST(TransposedK, LinesShareGroupsWithRoomToGrow) {
  KvBook kv({.block_tokens = 4, .device_blocks = 30, .host_blocks = 30});
  TransposedK columns(18, 1, kv.pool().capacity(), 8);
  std::vector<SequenceId> lines;
  for (int line = 0; line < 4; ++line) lines.push_back(line_of(kv, 20, 100 * line));
  for (const std::int64_t block : {0, 1, 2, 3}) {
    for (const SequenceId line : lines) {
      ASSERT_NE(columns.take(kv, line, block), TransposedK::kNone) << block;
    }
  }
  std::vector<std::int32_t> begins;
  for (const SequenceId line : lines) {
    begins.push_back(columns.find(kv, line, 0));
    const std::int64_t together = begins.back() == 16 ? 2 : 4;
    for (std::int64_t block = 1; block < together; ++block) {
      EXPECT_EQ(columns.find(kv, line, block), begins.back() + block) << begins.back();
    }
  }
  EXPECT_EQ(begins, (std::vector<std::int32_t>{0, 8, 16, 4}));
}

TEST(KvMemory, PagesOfALayerBecomeThoseOfAnother) {
  std::vector<PageId> table{PageId(7), PageId(), PageId(40)};
  KvMemory::move_pages({}, table, LayerId(1), LayerId(3));
  EXPECT_EQ(table, (std::vector{PageId(9), PageId(), PageId(42)}));
  KvMemory::move_pages({}, table, LayerId(3), LayerId(0));
  EXPECT_EQ(table, (std::vector{PageId(6), PageId(), PageId(39)}));
}

}  // namespace
}  // namespace triphase
