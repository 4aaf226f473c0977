// Tokens on their way to the token cache before their step: who waits for them, and what is left
// when they do not come.

#include "memory/kv/early_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "memory/host_device.h"
#include "memory/kv/kv_store.h"
#include "memory/transfer/host_transfer_engine.h"

namespace triphase {
namespace {

TEST(EarlyTokens, KnowTheirRangesAndWhatTheyRead) {
  EarlyTokens early;
  EXPECT_TRUE(early.empty());
  early.add({.layer = 0, .part = 1, .slot = 5}, 7, 3);
  early.add({.layer = 0, .part = 0, .slot = 6}, 7, 3);
  early.end_range(Ticket{9}, 64);
  early.add({.layer = 2, .part = 0, .slot = 1}, 8, 4);
  early.end_range(Ticket{11}, 32);
  EXPECT_EQ(early.ranges(), 2);
  EXPECT_EQ(early.ticket(1).value, 11U);
  EXPECT_EQ(early.ranges_of(0), 1);
  EXPECT_EQ(early.ranges_of(1), 0);
  EXPECT_EQ(early.ranges_of(2), 2);
  EXPECT_EQ(early.bytes(), 96U);
  EXPECT_EQ(early.slots().size(), 3U);
  EXPECT_TRUE(early.reads(7, 3));
  EXPECT_FALSE(early.reads(7, 4)) << "it is on another host block by now";
  EXPECT_FALSE(early.reads(9, 3));
  early.clear();
  EXPECT_TRUE(early.empty());
  EXPECT_FALSE(early.reads(7, 3));
  EXPECT_EQ(early.bytes(), 0U);
}

// One sequence of three blocks, two of them on the host, whose token 1 of layer 1 is on its way to
// the cache.
class EarlyTokensOfStore : public testing::Test {
 protected:
  static constexpr std::int64_t kLayer = 1;
  static constexpr std::int64_t kOffset = 1;

  void SetUp() override {
    KvBook& book = store_.book();
    const std::vector<TokenId> prompt(12, TokenId{4});
    sequence_ = book.admit(prompt, 16, 0, {.host_blocks = 2, .input_blocks = 1}).sequence;
    book.append(sequence_, 12);
    // Something to recognize.
    std::fill_n(store_.k_pages(), kPageHalf * kPages, std::byte{0x5a});
    offload(2);
    store_.settle();
    store_.token_cache(1).begin_step();
    key_ = {book.block_index(sequence_, 0), book.block(sequence_, 0).id};
  }

  void offload(std::int64_t blocks) {
    KvMoves moves;
    store_.book().offload(sequence_, blocks, moves);
    store_.carry_out(moves);
  }

  void bring(bool fails) {
    TokenCache& cache = store_.token_cache(1);
    EXPECT_FALSE(cache.keep_for_next(kLayer, 0, key_, kOffset));
    slot_ = cache.add_for_next(kLayer, 0, key_, kOffset);
    ASSERT_GE(slot_, 0);
    const auto source = store_.arrived_source(LayerId(kLayer), sequence_, 0);
    ASSERT_TRUE(source.has_value());
    store_.early_tokens().add({kLayer, 0, slot_}, source->block_index, source->host_block);
    const TokenRun run{.slot = store_.cache_slot(LayerId(kLayer), slot_),
                       .record = store_.host_record(source->host_block, LayerId(kLayer), kOffset),
                       .count = 1,
                       .head_count = static_cast<std::int32_t>(store_.shape().kv_heads)};
    if (fails) transfers_.fail_transfer(1);
    store_.early_tokens().end_range(
        transfers_.move_tokens(Lane::kToDevice, store_.geometry(), {&run, 1}),
        static_cast<std::uint64_t>(store_.geometry().bytes(run)));
  }

  // First byte of K of the cache slot.
  [[nodiscard]] std::byte arrived() const {
    const std::int64_t place = store_.cache_slot(LayerId(kLayer), slot_);
    const std::int64_t page = place / 4;
    const std::int64_t row_bytes = 8 * 2;
    return store_.k_pages()[page * kPageHalf + place % 4 * row_bytes];
  }

  static constexpr std::int64_t kPages = 12;
  static constexpr std::int64_t kPageHalf = 4 * 8 * 2;
  HostDevice device_;
  MemoryPool pool_{device_, MemoryTier::kDevice, std::uint64_t{1} << 20};
  MemoryPool host_{device_, MemoryTier::kHost, std::uint64_t{1} << 20};
  HostTransferEngine transfers_{EmulatedLink{.bytes_per_second = 1e4, .seconds_per_record = 0.0}};
  KvStore store_{{.layers = 2, .kv_heads = 1, .head_dim = 8, .block_tokens = 4, .input_width = 8},
                 {.device_pages = kPages,
                  .staging_pages = 2,
                  .cache_pages = 2,
                  .host_blocks = 4,
                  .input_blocks = 1},
                 pool_,
                 &host_,
                 &transfers_};
  SequenceId sequence_;
  TokenCache::BlockKey key_;
  std::int32_t slot_ = TokenCache::kNone;
};

TEST_F(EarlyTokensOfStore, AreFoundByTheNextStepAndThereOnceWaitedFor) {
  bring(/*fails=*/false);
  const std::uint64_t bytes = 2 * 8 * 2;
  EXPECT_EQ(store_.waiting_early_bytes(), bytes);
  EXPECT_EQ(store_.early_use().brought, bytes);
  EXPECT_EQ(store_.early_use().unused, bytes);
  TokenCache& cache = store_.token_cache(1);
  cache.begin_step();
  TokenCache::Hit hit = cache.look_up(kLayer, 0, key_, kOffset);
  EXPECT_EQ(hit.slot, slot_);
  EXPECT_TRUE(hit.early);
  hit = cache.look_up(kLayer, 0, key_, kOffset);
  EXPECT_EQ(hit.slot, slot_);
  EXPECT_FALSE(hit.early) << "counted once";
  store_.hold_early_tokens(store_.early_tokens().ranges_of(kLayer));
  EXPECT_EQ(arrived(), std::byte{0x5a});
  store_.end_early_tokens();
  EXPECT_TRUE(store_.early_tokens().empty());
  EXPECT_EQ(store_.early_use().brought, bytes);
  EXPECT_EQ(store_.early_use().unused, 0U);
  EXPECT_EQ(cache.find(kLayer, 0, key_, kOffset), slot_) << "it stays";
  cache.check();
}

TEST_F(EarlyTokensOfStore, ThatNobodyAsksForAreLikeOthersOnceTheirStepIsPast) {
  bring(/*fails=*/false);
  TokenCache& cache = store_.token_cache(1);
  cache.begin_step();
  store_.end_early_tokens();
  EXPECT_EQ(store_.waiting_early_bytes(), 0U);
  EXPECT_GT(store_.early_use().unused, 0U);
  EXPECT_EQ(arrived(), std::byte{0x5a});
  cache.begin_step();
  const TokenCache::Hit hit = cache.look_up(kLayer, 0, key_, kOffset);
  EXPECT_EQ(hit.slot, slot_);
  EXPECT_FALSE(hit.early);
  cache.check();
}

TEST_F(EarlyTokensOfStore, ThatNeverCameAreNotFound) {
  bring(/*fails=*/true);
  TokenCache& cache = store_.token_cache(1);
  cache.begin_step();
  EXPECT_EQ(cache.find(kLayer, 0, key_, kOffset), slot_);
  EXPECT_THROW(store_.hold_early_tokens(1), Error);
  EXPECT_EQ(cache.find(kLayer, 0, key_, kOffset), TokenCache::kNone);
  EXPECT_TRUE(store_.early_tokens().empty());
  EXPECT_EQ(cache.early(), 0);
  cache.check();
  EXPECT_NO_THROW(store_.hold_early_tokens(1)) << "said once";
}

TEST_F(EarlyTokensOfStore, AreGivenUpWithTheJob) {
  for (const bool fails : {false, true}) {
    bring(fails);
    store_.give_up();
    EXPECT_TRUE(store_.early_tokens().empty());
    TokenCache& cache = store_.token_cache(1);
    EXPECT_EQ(cache.find(kLayer, 0, key_, kOffset), TokenCache::kNone);
    cache.check();
    EXPECT_FALSE(store_.moving());
    store_.book().check();
    EXPECT_EQ(store_.book().device().used(), 0);
    SetUp();  // the job's sequences have ended
  }
}

// At 10 kB/s the transfer takes milliseconds: without waiting it could not be there.
TEST_F(EarlyTokensOfStore, HoldTheirHostBlockUntilTheyAreThere) {
  bring(/*fails=*/false);
  store_.release(sequence_);
  EXPECT_EQ(arrived(), std::byte{0x5a});
  store_.end_early_tokens();
}

TEST_F(EarlyTokensOfStore, HoldABlockThatIsDiscarded) {
  bring(/*fails=*/false);
  KvMoves moves;
  store_.book().discard(sequence_, 1, moves);
  store_.carry_out(moves);
  EXPECT_EQ(arrived(), std::byte{0x5a});
  TokenCache& cache = store_.token_cache(1);
  cache.begin_step();
  EXPECT_EQ(cache.find(kLayer, 0, key_, kOffset), slot_) << "the token is the same";
}

TEST_F(EarlyTokensOfStore, OfAFailedTransferSpeakUpWhenTheBlockEnds) {
  bring(/*fails=*/true);
  EXPECT_THROW(store_.release(sequence_), Error);
  EXPECT_EQ(store_.token_cache(1).find(kLayer, 0, key_, kOffset), TokenCache::kNone);
}

// A cache of another shape knows nothing of what is on its way to the old one.
TEST_F(EarlyTokensOfStore, ArriveBeforeTheCacheIsDividedAnew) {
  bring(/*fails=*/false);
  static_cast<void>(store_.token_cache(2));
  EXPECT_TRUE(store_.early_tokens().empty());
  EXPECT_EQ(arrived(), std::byte{0x5a});
}

// A block whose bytes are on the host counts as there before the bookkeeping says so.
TEST_F(EarlyTokensOfStore, MayBeOfBlocksThatHaveJustLeft) {
  offload(1);
  transfers_.drain();
  EXPECT_EQ(store_.book().block(sequence_, 2).place, BlockPlace::kOffloading);
  EXPECT_FALSE(store_.early_source(LayerId(0), sequence_, 2).has_value());
  const auto source = store_.arrived_source(LayerId(0), sequence_, 2);
  ASSERT_TRUE(source.has_value());
  store_.settle();
  EXPECT_EQ(store_.early_source(LayerId(0), sequence_, 2)->host_block, source->host_block);
}

}  // namespace
}  // namespace triphase
