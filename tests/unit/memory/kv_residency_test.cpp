#include "memory/kv/kv_residency.h"

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

TEST(KvResidency, PlacesFollowTheBlocks) {
  KvResidency kv({.layers = 2, .block_tokens = 4, .device_pages = 20});
  const auto prompt = iota_tokens(6);
  const auto admission = kv.admit(prompt, 10, 0);
  ASSERT_TRUE(admission.sequence.valid());
  EXPECT_EQ(admission.shared_tokens, 0);
  EXPECT_EQ(kv.reserved_pages(), 6);
  kv.append(admission.sequence, 6);
  EXPECT_EQ(kv.used_pages(), 4);
  EXPECT_EQ(kv.reserved_pages(), 2);
  const auto first = kv.pages(admission.sequence, LayerId(0));
  const auto second = kv.pages(admission.sequence, LayerId(1));
  ASSERT_EQ(first.size(), 2U);
  EXPECT_NE(first[1], second[1]);
  kv.append(admission.sequence, 4);
  EXPECT_EQ(kv.reserved_pages(), 0);
  kv.append(admission.sequence, 2);  // still inside the last block
  EXPECT_THROW(kv.append(admission.sequence, 1), Error);
}

TEST(KvResidency, EqualPrefixesShareClosedBlocksAfterPublishing) {
  KvResidency kv({.layers = 1, .block_tokens = 4, .device_pages = 20});
  const auto prompt = iota_tokens(10);
  const auto first = kv.admit(prompt, 12, 0);
  kv.append(first.sequence, 10);
  EXPECT_EQ(kv.admit(prompt, 12, 0).shared_tokens, 0) << "not computed yet";
  kv.publish(first.sequence, prompt);
  const auto third = kv.admit(prompt, 12, 0);
  EXPECT_EQ(third.shared_tokens, 8);
  EXPECT_EQ(kv.pages(third.sequence, LayerId(0))[1], kv.pages(first.sequence, LayerId(0))[1]);
  EXPECT_EQ(kv.admit(prompt, 12, 1).shared_tokens, 0) << "another context key";
  kv.check();
}

TEST(KvResidency, TheLastPromptTokenIsNeverShared) {
  KvResidency kv({.layers = 1, .block_tokens = 4, .device_pages = 20});
  const auto prompt = iota_tokens(8);
  const auto first = kv.admit(prompt, 8, 0);
  kv.append(first.sequence, 8);
  kv.publish(first.sequence, prompt);
  EXPECT_EQ(kv.admit(prompt, 8, 0).shared_tokens, 4);
}

TEST(KvResidency, EndedPromptsStayFindableUntilTheirPagesAreNeeded) {
  KvResidency kv({.layers = 1, .block_tokens = 4, .device_pages = 4});
  const auto prompt = iota_tokens(9);
  const auto first = kv.admit(prompt, 9, 0);
  kv.append(first.sequence, 9);
  kv.publish(first.sequence, prompt);
  kv.release(first.sequence);
  EXPECT_EQ(kv.evictable_pages(), 2);
  const auto again = kv.admit(prompt, 9, 0);
  EXPECT_EQ(again.shared_tokens, 8);
  kv.release(again.sequence);
  const auto other = kv.admit(iota_tokens(16, 100), 16, 0);
  ASSERT_TRUE(other.sequence.valid());
  kv.append(other.sequence, 16);
  kv.check();
  EXPECT_EQ(kv.evictable_pages(), 0);
  kv.release(other.sequence);
  EXPECT_EQ(kv.admit(prompt, 9, 0).shared_tokens, 0);
}

TEST(KvResidency, MirroredBlocksHaveTheirHostBlockFromTheBeginning) {
  KvResidency kv(
      {.layers = 1, .block_tokens = 4, .device_pages = 12, .host_blocks = 6, .mirrored = true});
  const auto prompt = iota_tokens(9);
  const KvResidency::Reservation on_host{.device_blocks = 0, .host_blocks = 3};
  const SequenceId line = kv.admit(prompt, 12, 0, on_host).sequence;
  kv.append(line, 9);
  EXPECT_EQ(kv.free_host_blocks(), 3) << "reserved and taken are one thing";
  EXPECT_EQ(kv.reserved_host_blocks(line), 3);
  for (std::int64_t block = 0; block < 3; ++block) {
    EXPECT_GE(kv.mirror(line, block), 0);
    EXPECT_EQ(kv.host_copy(line, block), kv.mirror(line, block));
  }
  kv.publish(line, prompt);
  kv.check();

  // One with room on the device alone shares them, and has no mirrors of its own.
  const auto other = kv.admit(prompt, 12, 0, {.device_blocks = 1});
  EXPECT_EQ(other.shared_tokens, 8);
  kv.append(other.sequence, 1);
  EXPECT_GE(kv.mirror(other.sequence, 1), 0);
  EXPECT_EQ(kv.mirror(other.sequence, 2), -1);
  kv.check();

  const std::int32_t there = kv.mirror(line, 0);
  const KvResidency::Move move = kv.begin_offload(line, 0);
  EXPECT_TRUE(move.there);
  EXPECT_EQ(move.host_block, there);
  EXPECT_EQ(kv.mirror(line, 0), -1);
  EXPECT_EQ(kv.host_copy(line, 0), there) << "on its way and there";
  kv.check();
  kv.finish_offload(line, 0);
  EXPECT_EQ(kv.host_copy(line, 0), there);
  EXPECT_EQ(kv.reserved_host_blocks(line), 2);
  EXPECT_EQ(kv.free_host_blocks(), 3);

  // The line ends; the other one keeps the blocks, and no mirror of them.
  kv.release(line);
  EXPECT_EQ(kv.mirror(other.sequence, 1), -1);
  EXPECT_EQ(kv.free_host_blocks(), 5);
  EXPECT_FALSE(kv.begin_offload(other.sequence, 1).there);
  kv.finish_offload(other.sequence, 1);
  kv.check();
  kv.release(other.sequence);
  EXPECT_EQ(kv.free_host_blocks(), 6);
  kv.check();
}

TEST(KvResidency, RefusesWhatDoesNotFitWithoutChangingAnything) {
  KvResidency kv({.layers = 2, .block_tokens = 4, .device_pages = 5});
  const auto prompt = iota_tokens(3);
  const auto first = kv.admit(prompt, 8, 0);
  ASSERT_TRUE(first.sequence.valid());
  EXPECT_FALSE(kv.admit(prompt, 3, 0).sequence.valid());
  EXPECT_EQ(kv.reserved_pages(), 4);
  kv.release(first.sequence);
  EXPECT_TRUE(kv.admit(prompt, 3, 0).sequence.valid());
  kv.check();
}

// A model that knows what every page must hold: pages are written with (context key, token prefix)
// and every read through the tables must find exactly that.
TEST(KvResidencyProperty, RandomLivesKeepEveryTokensContent) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&random](std::int64_t low, std::int64_t high) {
      return std::uniform_int_distribution<std::int64_t>(low, high)(random);
    };
    const std::int64_t layers = pick(1, 3);
    const std::int64_t block_tokens = pick(1, 5);
    KvResidency kv({layers, block_tokens, pick(10, 60)});
    struct Live {
      std::vector<TokenId> tokens;
      std::int64_t max = 0;
      std::int64_t prompt = 0;
      std::uint64_t key = 0;
    };
    std::map<std::int32_t, Live> lives;
    // Content of (page, offset): the whole token history that leads there.
    std::map<std::pair<std::int32_t, std::int64_t>, std::string> memory;
    const auto place = [&](SequenceId id, std::int64_t layer, std::int64_t token) {
      const auto pages = kv.pages(id, LayerId(layer));
      const PageId page = pages[static_cast<std::size_t>(token / block_tokens)];
      return std::pair(page.value, token % block_tokens);
    };
    const auto history = [](const Live& live, std::int64_t layer, std::int64_t token) {
      std::string text = std::to_string(live.key) + "/" + std::to_string(layer);
      for (std::int64_t t = 0; t <= token; ++t) {
        text += "," + std::to_string(live.tokens[static_cast<std::size_t>(t)]);
      }
      return text;
    };
    const auto write = [&](SequenceId id, const Live& live, std::int64_t begin, std::int64_t end) {
      for (std::int64_t layer = 0; layer < layers; ++layer) {
        for (std::int64_t token = begin; token < end; ++token) {
          memory[place(id, layer, token)] = history(live, layer, token);
        }
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
        kv.release(SequenceId(entry->first));
        lives.erase(entry);
      }
      kv.check();
      for (const auto& [id, live] : lives) {
        for (std::int64_t layer = 0; layer < layers; ++layer) {
          for (std::size_t t = 0; t < live.tokens.size(); ++t) {
            const auto token = static_cast<std::int64_t>(t);
            ASSERT_EQ(memory[place(SequenceId(id), layer, token)], history(live, layer, token))
                << "seed " << seed << " step " << step;
          }
        }
      }
    }
    for (const auto& [id, live] : lives) kv.release(SequenceId(id));
    kv.check();
    EXPECT_EQ(kv.reserved_pages(), 0);
    EXPECT_EQ(kv.used_pages(), kv.evictable_pages());
  }
}

}  // namespace
}  // namespace triphase
