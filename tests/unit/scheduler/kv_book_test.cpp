#include "scheduler/kv/kv_book.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>

#include "base/error.h"

namespace triphase {
namespace {

std::vector<TokenId> iota_tokens(std::size_t count, TokenId first = 0) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

void release(KvBook& kv, SequenceId id) {
  KvMoves moves;
  kv.release(id, moves);
}

TEST(KvBook, PlacesFollowTheBlocks) {
  KvBook kv({.block_tokens = 4, .device_blocks = 10});
  const auto prompt = iota_tokens(6);
  const auto admission = kv.admit(prompt, 10, 0);
  ASSERT_TRUE(admission.sequence.valid());
  EXPECT_EQ(admission.shared_tokens, 0);
  EXPECT_EQ(kv.tiers().device.reserved(), 3);
  kv.append(admission.sequence, 6);
  EXPECT_EQ(kv.tiers().device.used(), 2);
  EXPECT_EQ(kv.tiers().device.reserved(), 1);
  EXPECT_NE(kv.table(admission.sequence)[0].slab, kv.table(admission.sequence)[1].slab);
  kv.append(admission.sequence, 4);
  EXPECT_EQ(kv.tiers().device.reserved(), 0);
  kv.append(admission.sequence, 2);  // still inside the last block
  EXPECT_THROW(kv.append(admission.sequence, 1), Error);
}

TEST(KvBook, EqualPrefixesShareClosedBlocksAfterPublishing) {
  KvBook kv({.block_tokens = 4, .device_blocks = 20});
  const auto prompt = iota_tokens(10);
  const auto first = kv.admit(prompt, 12, 0);
  kv.append(first.sequence, 10);
  EXPECT_EQ(kv.admit(prompt, 12, 0).shared_tokens, 0) << "not computed yet";
  kv.publish(first.sequence, prompt);
  const auto third = kv.admit(prompt, 12, 0);
  EXPECT_EQ(third.shared_tokens, 8);
  EXPECT_EQ(kv.table(third.sequence).number(1), kv.table(first.sequence).number(1));
  EXPECT_EQ(kv.admit(prompt, 12, 1).shared_tokens, 0) << "another context key";
  kv.check();
}

TEST(KvBook, TheLastPromptTokenIsNeverShared) {
  KvBook kv({.block_tokens = 4, .device_blocks = 20});
  const auto prompt = iota_tokens(8);
  const auto first = kv.admit(prompt, 8, 0);
  kv.append(first.sequence, 8);
  kv.publish(first.sequence, prompt);
  EXPECT_EQ(kv.admit(prompt, 8, 0).shared_tokens, 4);
}

TEST(KvBook, EndedPromptsStayFindableUntilTheirPagesAreNeeded) {
  KvBook kv({.block_tokens = 4, .device_blocks = 4});
  const auto prompt = iota_tokens(9);
  const auto first = kv.admit(prompt, 9, 0);
  kv.append(first.sequence, 9);
  kv.publish(first.sequence, prompt);
  release(kv, first.sequence);
  EXPECT_EQ(kv.tiers().device.used(), 0) << "they count as free";
  const auto again = kv.admit(prompt, 9, 0);
  EXPECT_EQ(again.shared_tokens, 8);
  release(kv, again.sequence);
  const auto other = kv.admit(iota_tokens(16, 100), 16, 0);
  ASSERT_TRUE(other.sequence.valid());
  kv.append(other.sequence, 16);
  kv.check();
  release(kv, other.sequence);
  EXPECT_EQ(kv.admit(prompt, 9, 0).shared_tokens, 0);
}

TEST(KvBook, MirroredBlocksHaveTheirHostBlockFromTheBeginning) {
  KvBook kv({.block_tokens = 4, .device_blocks = 12, .host_blocks = 6, .mirrored = true});
  const auto prompt = iota_tokens(9);
  const KvReservation on_host{.device_blocks = 0, .host_blocks = 3};
  const SequenceId line = kv.admit(prompt, 12, 0, on_host).sequence;
  kv.append(line, 9);
  EXPECT_EQ(kv.tiers().host.free(), 3) << "reserved and taken are one thing";
  EXPECT_EQ(kv.sequence(line).reserved_host, 3);
  for (std::int64_t block = 0; block < 3; ++block) {
    EXPECT_GE(kv.table(line)[block].mirror(), 0);
    EXPECT_EQ(kv.table(line)[block].host_copy(), kv.table(line)[block].mirror());
  }
  kv.publish(line, prompt);
  kv.check();

  // One with room on the device alone shares them, and has no mirrors of its own.
  const auto other = kv.admit(prompt, 12, 0, {.device_blocks = 1});
  EXPECT_EQ(other.shared_tokens, 8);
  kv.append(other.sequence, 1);
  EXPECT_GE(kv.table(other.sequence)[1].mirror(), 0);
  EXPECT_EQ(kv.table(other.sequence)[2].mirror(), -1);
  kv.check();

  const std::int32_t there = kv.table(line)[0].mirror();
  KvMoves moves;
  kv.placer(moves).offload(line, 1);
  ASSERT_EQ(moves.size(), 1U);
  EXPECT_EQ(moves[0].kind, KvMove::Kind::kMirrored);
  EXPECT_EQ(moves[0].host_block, there);
  EXPECT_EQ(kv.table(line)[0].mirror(), -1);
  EXPECT_EQ(kv.table(line)[0].host_copy(), there) << "on its way and there";
  kv.check();
  kv.finish_moves();
  EXPECT_EQ(kv.table(line)[0].host_copy(), there);
  EXPECT_EQ(kv.sequence(line).reserved_host, 2);
  EXPECT_EQ(kv.tiers().host.free(), 3);

  // The line ends; the other one keeps the blocks, and no mirror of them.
  kv.release(line, moves);
  EXPECT_EQ(kv.table(other.sequence)[1].mirror(), -1);
  EXPECT_EQ(kv.tiers().host.free(), 5);
  moves.clear();
  kv.placer(moves).offload(other.sequence, 1);
  EXPECT_EQ(moves.at(0).kind, KvMove::Kind::kOffload);
  kv.finish_moves();
  kv.check();
  kv.release(other.sequence, moves);
  EXPECT_EQ(kv.tiers().host.free(), 6);
  kv.check();
}

// Who shares blocks on the device may have to offload them: the host has room for these too.
TEST(KvBook, AHostReservationCoversSharedBlocksOnTheDevice) {
  KvBook kv({.block_tokens = 4, .device_blocks = 20, .host_blocks = 10});
  const auto prompt = iota_tokens(13);
  const SequenceId first = kv.admit(prompt, 16, 0).sequence;
  kv.append(first, 13);
  kv.publish(first, prompt);
  release(kv, first);
  const auto second = kv.admit(prompt, 40, 0, {.device_blocks = 2, .host_blocks = 10});
  EXPECT_EQ(second.shared_tokens, 12);
  EXPECT_EQ(kv.tiers().host.reserved(), 10);
  const auto other = kv.admit(iota_tokens(3, 100), 8, 0, {.device_blocks = 2, .host_blocks = 1});
  EXPECT_FALSE(other.sequence.valid()) << "the host is promised";
  KvMoves moves;
  kv.placer(moves).offload(second.sequence, 3);
  kv.check();
}

TEST(KvBook, RefusesWhatDoesNotFitWithoutChangingAnything) {
  KvBook kv({.block_tokens = 4, .device_blocks = 2});
  const auto prompt = iota_tokens(3);
  const auto first = kv.admit(prompt, 8, 0);
  ASSERT_TRUE(first.sequence.valid());
  EXPECT_FALSE(kv.admit(prompt, 3, 0).sequence.valid());
  EXPECT_EQ(kv.tiers().device.reserved(), 2);
  release(kv, first.sequence);
  EXPECT_TRUE(kv.admit(prompt, 3, 0).sequence.valid());
  kv.check();
}

// A model that knows what every slab must hold: slabs are written with (context key, token prefix)
// and every read through the tables must find exactly that.
TEST(KvBookProperty, RandomLivesKeepEveryTokensContent) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&random](std::int64_t low, std::int64_t high) {
      return std::uniform_int_distribution<std::int64_t>(low, high)(random);
    };
    const std::int64_t block_tokens = pick(1, 5);
    KvBook kv({.block_tokens = block_tokens, .device_blocks = pick(5, 40)});
    struct Live {
      std::vector<TokenId> tokens;
      std::int64_t max = 0;
      std::int64_t prompt = 0;
      std::uint64_t key = 0;
    };
    std::map<std::int32_t, Live> lives;
    // Content of (slab, offset): the whole token history that leads there.
    std::map<std::pair<std::int32_t, std::int64_t>, std::string> memory;
    const auto place = [&](SequenceId id, std::int64_t token) {
      return std::pair(kv.table(id)[token / block_tokens].slab, token % block_tokens);
    };
    const auto history = [](const Live& live, std::int64_t token) {
      std::string text = std::to_string(live.key);
      for (std::int64_t t = 0; t <= token; ++t) {
        text += "," + std::to_string(live.tokens[static_cast<std::size_t>(t)]);
      }
      return text;
    };
    const auto write = [&](SequenceId id, const Live& live, std::int64_t begin, std::int64_t end) {
      for (std::int64_t token = begin; token < end; ++token) {
        memory[place(id, token)] = history(live, token);
      }
    };
    for (int step = 0; step < 120; ++step) {
      const auto action = pick(0, 3);
      if (action == 0) {
        Live live;
        live.prompt = pick(1, 14);
        for (std::int64_t t = 0; t < live.prompt; ++t) {
          live.tokens.push_back(static_cast<TokenId>(pick(0, 10) == 0 ? 1 : 0));
        }
        live.max = live.prompt + pick(0, 6);
        live.key = static_cast<std::uint64_t>(pick(0, 1));
        const auto admission = kv.admit(live.tokens, live.max, live.key);
        if (!admission.sequence.valid()) continue;
        ASSERT_LT(admission.shared_tokens, live.prompt);
        kv.append(admission.sequence, live.prompt - admission.shared_tokens);
        write(admission.sequence, live, admission.shared_tokens, live.prompt);
        if (pick(0, 3) != 0) kv.publish(admission.sequence, live.tokens);
        lives[admission.sequence.value] = live;
      } else if (action <= 2 && !lives.empty()) {
        auto& [id, live] =
            *std::next(lives.begin(), pick(0, static_cast<std::int64_t>(lives.size()) - 1));
        const bool room = kv.append_room(SequenceId(id)) > 0;
        if (room && static_cast<std::int64_t>(live.tokens.size()) < live.max) {
          live.tokens.push_back(static_cast<TokenId>(pick(0, 3)));
          kv.append(SequenceId(id), 1);
          const auto size = static_cast<std::int64_t>(live.tokens.size());
          write(SequenceId(id), live, size - 1, size);
        }
      } else if (!lives.empty()) {
        const auto entry =
            std::next(lives.begin(), pick(0, static_cast<std::int64_t>(lives.size()) - 1));
        release(kv, SequenceId(entry->first));
        lives.erase(entry);
      }
      kv.check();
      for (const auto& [id, live] : lives) {
        for (std::int64_t token = 0; token < static_cast<std::int64_t>(live.tokens.size());
             ++token) {
          ASSERT_EQ(memory[place(SequenceId(id), token)], history(live, token))
              << "seed " << seed << " step " << step;
        }
      }
    }
    for (const auto& [id, live] : lives) release(kv, SequenceId(id));
    kv.check();
    EXPECT_EQ(kv.tiers().device.reserved(), 0);
    EXPECT_EQ(kv.tiers().device.used(), 0);
  }
}

}  // namespace
}  // namespace triphase
