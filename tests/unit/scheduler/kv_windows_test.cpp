// Window blocks of a book whose numbers follow by hand: windows of 6 tokens, blocks of 4, two
// window blocks of each, and steps of at most 9 prompt tokens. A sequence sets them aside for 4
// blocks, prompts together for 2 more.

#include "scheduler/kv/kv_windows.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "scheduler/kv/kv_book.h"

namespace triphase {
namespace {

constexpr KvWindowShape kWindows{.tokens = 6, .blocks = 2, .step_tokens = 9};

KvBook::Shape shape(std::int64_t device_blocks) {
  return {.block_tokens = 4, .device_blocks = device_blocks, .host_blocks = 8, .windows = kWindows};
}

std::vector<TokenId> tokens_from(std::size_t count, TokenId first = 0) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

void compute(KvBook& kv, SequenceId id, std::int64_t count) {
  kv.advance_windows();
  kv.append(id, count);
}

std::int64_t kept(const KvBook& kv, SequenceId id) {
  std::int64_t count = 0;
  for (std::int64_t block = 0; block < kv.table(id).size(); ++block) {
    count += kv.table(id).window(block, 1) == KvBlock::kNone ? 0 : 1;
  }
  return count;
}

TEST(KvWindows, RoomFollowsFromTheWindow) {
  EXPECT_EQ(window_room(kWindows, 4, 100), 4) << "6 tokens may lie in 3 blocks; and one to begin";
  EXPECT_EQ(window_room(kWindows, 4, 3), 3);
  EXPECT_EQ(window_room({}, 4, 100), 0);
  EXPECT_EQ(window_store(kWindows, 4), 2);
  EXPECT_EQ(first_block_in_window(5, 6, 4), 0);
  EXPECT_EQ(first_block_in_window(8, 6, 4), 0) << "token 8 reads tokens 3 to 8";
  EXPECT_EQ(first_block_in_window(9, 6, 4), 1);
  // Alone a sequence of n blocks takes n, 8 for windows, and 4 are for prompts.
  EXPECT_EQ(most_blocks_alone(kWindows, 4, 22), 10);
  EXPECT_EQ(most_blocks_alone(kWindows, 4, 13), 3) << "3 blocks with 6 window blocks";
  EXPECT_EQ(most_blocks_alone(kWindows, 4, 3), 0);
  EXPECT_EQ(most_blocks_alone({}, 4, 22), 22);
}

TEST(KvWindows, BlocksThatNoWindowReachesAreFree) {
  KvBook kv(shape(40));
  EXPECT_EQ(kv.tiers().device.reserved(), 4) << "for prompts";
  const SequenceId id = kv.admit(tokens_from(30), 40, 0).sequence;
  EXPECT_EQ(kv.tiers().device.reserved(), 4 + 10 + 8);
  compute(kv, id, 9);
  EXPECT_EQ(kept(kv, id), 3);
  EXPECT_EQ(kv.tiers().device.used(), 3 + 6);
  // Until the step is computed its first rows read their windows.
  compute(kv, id, 9);
  EXPECT_EQ(kept(kv, id), 4) << "blocks 1 to 4";
  EXPECT_EQ(kv.tiers().device.used(), 5 + 8);
  EXPECT_EQ(kv.table(id).window(0, 0), KvBlock::kNone);
  compute(kv, id, 9);
  EXPECT_EQ(kept(kv, id), 4) << "blocks 3 to 6";
  for (int token = 27; token < 40; ++token) {
    compute(kv, id, 1);
    EXPECT_LE(kept(kv, id), 3);
    kv.check();
  }
  EXPECT_EQ(kv.tiers().device.used(), 10 + 2 * 2) << "of 40 tokens";
  EXPECT_EQ(kv.tiers().device.used() + kv.tiers().device.reserved(), 10 + 8 + 4);
  KvMoves moves;
  kv.release(id, moves);
  EXPECT_EQ(kv.tiers().device.used(), 0);
  EXPECT_EQ(kv.tiers().device.reserved(), 4);
}

TEST(KvWindows, PromptsShareAStore) {
  KvBook kv(shape(60));
  const SequenceId one = kv.admit(tokens_from(30), 40, 0).sequence;
  const SequenceId other = kv.admit(tokens_from(30, 100), 40, 0).sequence;
  kv.append(one, 24);  // 6 blocks: 2 of the store's
  EXPECT_EQ(kv.append_room(one), 0);
  EXPECT_EQ(kv.append_room(other), 16) << "4 blocks are its own";
  EXPECT_THROW(kv.append(other, 17), Error);
}

TEST(KvWindows, StayOnTheDeviceWhereOthersLeaveIt) {
  KvBook kv(shape(22));
  const SequenceId id =
      kv.admit(tokens_from(30), 40, 0, {.device_blocks = 4, .host_blocks = 8}).sequence;
  compute(kv, id, 9);
  KvMoves moves;
  kv.placer(moves).offload(id, 2);
  kv.finish_moves();
  EXPECT_EQ(kept(kv, id), 3);
  EXPECT_EQ(kv.tiers().device.used(), 1 + 6);
  compute(kv, id, 9);
  EXPECT_EQ(kv.table(id).window(1, 0) == KvBlock::kNone, false) << "a block on the host";
  kv.check();
}

// A sequence can begin with a prefix whose end has window blocks as far back as a window reaches.
TEST(KvWindows, APrefixIsSharedWhereItsWindowBlocksAreThere) {
  KvBook kv(shape(100));
  const auto prompt = tokens_from(30);
  const SequenceId first = kv.admit(prompt, 60, 0).sequence;
  for (int chunk = 0; chunk < 3; ++chunk) compute(kv, first, 8);
  kv.publish(first, std::span(prompt).first(24));
  // Blocks 0 to 2 lost theirs before anybody could find them.
  EXPECT_EQ(kv.find_prefix(std::span(prompt).first(13), 0).blocks.size(), 0U);
  EXPECT_EQ(kv.find_prefix(std::span(prompt).first(21), 0).blocks.size(), 5U);
  EXPECT_EQ(kv.find_prefix(prompt, 0).blocks.size(), 6U);
  const std::int64_t used = kv.tiers().device.used();
  const KvBook::Admission second = kv.admit(prompt, 60, 0);
  EXPECT_EQ(second.shared_tokens, 24);
  EXPECT_EQ(kv.table(second.sequence).window(4, 1), kv.table(first).window(4, 1));
  EXPECT_EQ(kv.tiers().device.used(), used);
  EXPECT_EQ(kept(kv, second.sequence), 2) << "tokens 19 to 23";
  kv.check();
  // The first goes on: what the second holds stays, and what is findable stays until it is needed.
  for (int token = 24; token < 50; ++token) {
    compute(kv, first, 1);
    kv.check();
  }
  EXPECT_EQ(kept(kv, second.sequence), 2);
  KvMoves moves;
  kv.release(second.sequence, moves);
  kv.check();
  EXPECT_EQ(kv.find_prefix(prompt, 0).blocks.size(), 6U);
  const KvBook::Admission third = kv.admit(prompt, 60, 0);
  EXPECT_EQ(third.shared_tokens, 24) << "nobody held them, and they were there";
  kv.check();
}

TEST(KvWindows, UnheldOnesAreEvictedFirstLetGoFirst) {
  KvBook kv(shape(42));
  const auto prompt = tokens_from(8);
  const SequenceId first = kv.admit(prompt, 8, 0).sequence;
  compute(kv, first, 8);
  kv.publish(first, prompt);
  KvMoves moves;
  kv.release(first, moves);
  EXPECT_EQ(kv.tiers().device.used(), 0);
  EXPECT_EQ(kv.tiers().device.evictable(), 6);
  EXPECT_EQ(kv.find_prefix(tokens_from(9), 0).blocks.size(), 2U);
  // 30 blocks, and up to 4 with window blocks: two more places than there are.
  const SequenceId other = kv.admit(tokens_from(1, 100), 120, 0).sequence;
  for (int chunk = 0; chunk < 15; ++chunk) compute(kv, other, 8);
  kv.check();
  EXPECT_EQ(kv.tiers().device.evictable(), 4) << "two blocks, and the second's window blocks";
  EXPECT_EQ(kv.find_prefix(tokens_from(9), 0).blocks.size(), 0U) << "token 8 reads the first's";
}

TEST(KvWindows, ABlockThatIsReplacedLeavesItsWindowBlocks) {
  KvBook kv(shape(100));
  const auto prompt = tokens_from(8);
  // Both compute the same prompt at once.
  const SequenceId first = kv.admit(prompt, 40, 0).sequence;
  const SequenceId second = kv.admit(prompt, 40, 0).sequence;
  kv.append(first, 8);
  kv.append(second, 8);
  kv.publish(first, prompt);
  const std::int64_t used = kv.tiers().device.used();
  kv.publish(second, prompt);
  EXPECT_EQ(kv.tiers().device.used(), used - 2 * 3);
  EXPECT_EQ(kv.table(second).window(1, 0), kv.table(first).window(1, 0));
  kv.check();
  // The first one's windows go on, and those of a third that computes it again are taken over.
  for (int token = 8; token < 30; ++token) compute(kv, first, 1);
  for (int token = 8; token < 30; ++token) compute(kv, second, 1);
  kv.check();
  KvMoves moves;
  kv.release(first, moves);
  kv.release(second, moves);
  const SequenceId large = kv.admit(tokens_from(1, 100), 300, 0).sequence;
  for (int token = 0; token < 300; ++token) compute(kv, large, 1);
  kv.check();
}

}  // namespace
}  // namespace triphase
