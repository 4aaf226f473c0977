#include "memory/kv/token_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>

namespace triphase {
namespace {

constexpr TokenCache::Shape kShape{
    .layers = 2, .parts = 2, .block_tokens = 4, .slots = 6, .blocks = 5};

TEST(TokenCache, WithoutSlotsHoldsNothing) {
  TokenCache cache({.layers = 2, .parts = 1, .block_tokens = 4, .slots = 0, .blocks = 3});
  cache.begin_step();
  EXPECT_EQ(cache.add(0, 0, {0, 1}, 0), TokenCache::kNone);
  EXPECT_EQ(cache.find(0, 0, {0, 1}, 0), TokenCache::kNone);
  cache.check();
}

TEST(TokenCache, KeepsWhatIsChosenAgainAndDropsTheOldest) {
  TokenCache cache({.layers = 1, .parts = 1, .block_tokens = 8, .slots = 3, .blocks = 1});
  const TokenCache::BlockKey block{0, 9};
  cache.begin_step();
  for (std::int64_t token : {0, 1, 2}) EXPECT_GE(cache.add(0, 0, block, token), 0);
  EXPECT_EQ(cache.add(0, 0, block, 3), TokenCache::kNone) << "all slots are read in this step";
  cache.begin_step();
  EXPECT_GE(cache.find(0, 0, block, 0), 0);
  EXPECT_EQ(cache.add(0, 0, block, 3), TokenCache::kNone)
      << "what the last step chose may come back";
  cache.begin_step();
  EXPECT_GE(cache.find(0, 0, block, 1), 0) << "chosen twice, but not in the last step";
  EXPECT_GE(cache.add(0, 0, block, 3), 0);
  EXPECT_EQ(cache.find(0, 0, block, 2), TokenCache::kNone)
      << "the only one that nobody chose again";
  EXPECT_GE(cache.find(0, 0, block, 0), 0);
  cache.begin_step();
  cache.begin_step();
  cache.begin_step();
  // Alike in age, tokens 0 and 1 were chosen in two steps, token 3 in one.
  EXPECT_GE(cache.add(0, 0, block, 5), 0);
  EXPECT_EQ(cache.find(0, 0, block, 3), TokenCache::kNone);
  cache.check();
}

TEST(TokenCache, WhatTheNextStepChoosesStaysForIt) {
  TokenCache cache({.layers = 1, .parts = 1, .block_tokens = 8, .slots = 3, .blocks = 1});
  const TokenCache::BlockKey block{0, 9};
  cache.begin_step();
  for (std::int64_t token : {0, 1, 2}) EXPECT_GE(cache.add(0, 0, block, token), 0);
  cache.begin_step();
  const std::int32_t kept = cache.find(0, 0, block, 2);
  EXPECT_TRUE(cache.keep_for_next(0, 0, block, 0));
  EXPECT_FALSE(cache.keep_for_next(0, 0, block, 5));
  const std::int32_t early = cache.add_for_next(0, 0, block, 5);
  ASSERT_GE(early, 0);
  EXPECT_NE(early, kept) << "read in this step";
  EXPECT_EQ(cache.find(0, 0, block, 1), TokenCache::kNone) << "the only one that nobody wants";
  EXPECT_EQ(cache.add_for_next(0, 0, block, 6), TokenCache::kNone);
  EXPECT_EQ(cache.early(), 1);
  cache.check();
  cache.begin_step();
  EXPECT_EQ(cache.add(0, 0, block, 6), TokenCache::kNone) << "all were chosen in the last step";
  EXPECT_GE(cache.find(0, 0, block, 0), 0);
  EXPECT_TRUE(cache.look_up(0, 0, block, 5).early);
  EXPECT_EQ(cache.early(), 0);
  EXPECT_EQ(cache.find(0, 0, block, 2), kept);
  cache.check();
}

// A slot that is forgotten, or brought for a step that did not come, leaves like others.
TEST(TokenCache, EarlyTokensThatNobodyChoseLeaveInTheirTurn) {
  TokenCache cache({.layers = 1, .parts = 1, .block_tokens = 8, .slots = 2, .blocks = 1});
  const TokenCache::BlockKey block{0, 9};
  cache.begin_step();
  const std::int32_t lost = cache.add_for_next(0, 0, block, 3);
  const std::int32_t unread = cache.add_for_next(0, 0, block, 4);
  cache.forget(0, 0, lost);
  cache.end_early(0, 0, unread);
  EXPECT_EQ(cache.early(), 0);
  EXPECT_EQ(cache.find(0, 0, block, 3), TokenCache::kNone);
  cache.check();
  cache.begin_step();
  cache.begin_step();
  EXPECT_EQ(cache.add(0, 0, block, 6), lost);
  cache.begin_step();
  EXPECT_EQ(cache.add(0, 0, block, 7), unread);
  EXPECT_EQ(cache.find(0, 0, block, 4), TokenCache::kNone);
  cache.check();
}

TEST(TokenCache, ABlockThatTookAnothersPlaceHasNoneOfItsTokens) {
  TokenCache cache(kShape);
  cache.begin_step();
  const std::int32_t slot = cache.add(1, 1, {3, 7}, 2);
  EXPECT_EQ(cache.find(1, 1, {3, 7}, 2), slot);
  EXPECT_EQ(cache.find(1, 0, {3, 7}, 2), TokenCache::kNone) << "another part";
  EXPECT_EQ(cache.find(0, 1, {3, 7}, 2), TokenCache::kNone) << "another layer";
  EXPECT_EQ(cache.find(1, 1, {3, 8}, 2), TokenCache::kNone);
  EXPECT_GE(cache.add(1, 1, {3, 8}, 1), 0);
  EXPECT_EQ(cache.find(1, 1, {3, 8}, 2), TokenCache::kNone);
  cache.check();
}

// Against a plain list of what each slot holds.
TEST(TokenCache, NeverGivesAwayWhatThisStepOrTheLastOneReads) {
  std::mt19937 random(8);
  TokenCache cache(kShape);
  using Token = std::tuple<std::int32_t, std::uint64_t, std::int64_t>;  // block, id, offset
  using Where = std::pair<std::int64_t, std::int64_t>;                  // layer, part
  std::map<Where, std::map<std::int32_t, Token>> held;
  std::map<std::tuple<Where, Token>, int> last_chosen;
  std::vector<std::uint64_t> ids(5, 1);
  std::uint64_t next_id = 2;
  std::uint64_t found = 0;
  for (int step = 0; step < 3000; ++step) {
    cache.begin_step();
    if (random() % 20 == 0) ids[random() % ids.size()] = next_id++;
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      for (std::int64_t part = 0; part < 2; ++part) {
        const Where where{layer, part};
        for (unsigned i = 0; i < random() % 6; ++i) {
          const auto block = static_cast<std::int32_t>(random() % 3);
          const std::uint64_t id = ids[static_cast<std::size_t>(block)];
          const auto offset = static_cast<std::int64_t>(random() % 4);
          const Token token{block, id, offset};
          std::int32_t slot = cache.find(layer, part, {block, id}, offset);
          auto& slots = held[where];
          const auto holder =
              std::ranges::find_if(slots, [&](const auto& one) { return one.second == token; });
          ASSERT_EQ(slot, holder == slots.end() ? TokenCache::kNone : holder->first);
          if (slot != TokenCache::kNone) {
            ++found;
          } else {
            slot = cache.add(layer, part, {block, id}, offset);
            if (slot == TokenCache::kNone) continue;
            ASSERT_GE(slot, 0);
            ASSERT_LT(slot, kShape.slots);
            const auto old = slots.find(slot);
            if (old != slots.end()) {
              ASSERT_LT(last_chosen.at({where, old->second}), step - 1);
            }
            slots[slot] = token;
          }
          last_chosen[{where, token}] = step;
        }
      }
    }
    if (step % 50 == 0) cache.check();
  }
  EXPECT_GT(found, 1000U);
}

}  // namespace
}  // namespace triphase
