#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>

#include "base/error.h"
#include "memory/kv/kv_residency.h"

namespace triphase {
namespace {

std::vector<TokenId> iota_tokens(std::size_t count, TokenId first = 0) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

TEST(KvMoves, AnOffloadedBlockGivesItsPagesBack) {
  KvResidency kv({.layers = 2, .block_tokens = 4, .device_pages = 6, .host_blocks = 4});
  const auto admission = kv.admit(iota_tokens(4), 16, 0, {.device_blocks = 2, .host_blocks = 2});
  ASSERT_TRUE(admission.sequence.valid());
  const SequenceId id = admission.sequence;
  kv.append(id, 4);
  EXPECT_EQ(kv.reserved_pages(), 2);
  EXPECT_EQ(kv.free_host_blocks(), 2);
  const auto move = kv.begin_offload(id, 0);
  EXPECT_EQ(move.pages.size(), 2U);
  EXPECT_GE(move.host_block, 0);
  EXPECT_TRUE(kv.pages(id, LayerId(1))[0].valid())
      << "read where it was until the move is finished";
  kv.finish_offload(id, 0);
  kv.check();
  EXPECT_EQ(kv.used_pages(), 0);
  EXPECT_EQ(kv.reserved_pages(), 2);
  EXPECT_EQ(kv.append_room(id), 12);
  EXPECT_EQ(kv.block_place(id, 0), BlockPlace::kHost);
  EXPECT_FALSE(kv.pages(id, LayerId(0))[0].valid());
  EXPECT_THROW((void)kv.begin_offload(id, 0), Error);

  static_cast<void>(kv.begin_reload(id, 0));
  kv.finish_reload(id, 0);
  kv.check();
  EXPECT_TRUE(kv.pages(id, LayerId(0))[0].valid());
  EXPECT_EQ(kv.block_place(id, 0), BlockPlace::kDevice);
}

TEST(KvMoves, OpenBlocksStay) {
  KvResidency kv({.layers = 1, .block_tokens = 4, .device_pages = 6, .host_blocks = 4});
  const SequenceId id = kv.admit(iota_tokens(3), 8, 0).sequence;
  kv.append(id, 3);
  EXPECT_THROW((void)kv.begin_offload(id, 0), Error);
}

TEST(KvMoves, AFullHostRefusesAndReservationsKeepItsBlocks) {
  KvResidency kv({.layers = 1, .block_tokens = 4, .device_pages = 8, .host_blocks = 2});
  const SequenceId first = kv.admit(iota_tokens(8), 8, 0, {.host_blocks = 2}).sequence;
  EXPECT_FALSE(kv.admit(iota_tokens(8), 8, 1, {.host_blocks = 1}).sequence.valid());
  const SequenceId second = kv.admit(iota_tokens(8), 8, 1).sequence;
  kv.append(second, 8);
  EXPECT_THROW((void)kv.begin_offload(second, 0), Error);
  kv.append(first, 8);
  for (const std::int64_t block : {0, 1}) {
    static_cast<void>(kv.begin_offload(first, block));
    kv.finish_offload(first, block);
  }
  kv.check();
}

TEST(KvMoves, OnlyHostBlocksWithSavedInputsAreDiscarded) {
  KvResidency kv(
      {.layers = 1, .block_tokens = 4, .device_pages = 8, .host_blocks = 2, .input_blocks = 1});
  const SequenceId id = kv.admit(iota_tokens(8), 12, 0, {.input_blocks = 1}).sequence;
  EXPECT_EQ(kv.free_input_blocks(), 0);
  EXPECT_FALSE(kv.admit(iota_tokens(8, 50), 12, 0, {.input_blocks = 1}).sequence.valid());
  kv.append(id, 8);
  EXPECT_EQ(kv.input_blocks(id), 1);
  EXPECT_THROW(kv.discard(id, 0), Error) << "on the device";
  for (const std::int64_t block : {0, 1}) {
    static_cast<void>(kv.begin_offload(id, block));
    kv.finish_offload(id, block);
  }
  kv.discard(id, 0);
  kv.check();
  EXPECT_EQ(kv.block_place(id, 0), BlockPlace::kRecomputable);
  EXPECT_EQ(kv.free_host_blocks(), 1);
  EXPECT_EQ(kv.host_block(id, 0), -1);
  EXPECT_THROW(kv.discard(id, 1), Error) << "no layer inputs";
  kv.release(id);
  kv.check();
  EXPECT_EQ(kv.free_input_blocks(), 1);
}

TEST(KvMoves, InputsThatAnEndedSequenceLeftDoNotBreakPromises) {
  KvResidency kv(
      {.layers = 1, .block_tokens = 4, .device_pages = 8, .host_blocks = 2, .input_blocks = 1});
  const SequenceId first = kv.admit(iota_tokens(5), 8, 0, {.input_blocks = 1}).sequence;
  kv.append(first, 5);
  kv.publish(first, iota_tokens(5));
  kv.release(first);
  EXPECT_EQ(kv.free_input_blocks(), 1);
  const SequenceId second = kv.admit(iota_tokens(4, 50), 4, 0, {.input_blocks = 1}).sequence;
  // Shares the block whose layer inputs the second one was promised.
  const auto third = kv.admit(iota_tokens(5), 8, 0);
  EXPECT_EQ(third.shared_tokens, 4);
  kv.check();
  kv.append(second, 4);
  kv.check();
  EXPECT_EQ(kv.input_blocks(second), 1);
}

// Random lives of sequences whose blocks move to and fro and are discarded: no page, host block or
// input block is lost or held twice, every promise holds, and every token keeps the bytes that were
// written for it or for its layer inputs.
TEST(KvMovesProperty, RandomMovesKeepEveryTokensContent) {
  int discarded = 0;
  for (int seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto pick = [&random](std::int64_t low, std::int64_t high) {
      return std::uniform_int_distribution<std::int64_t>(low, high)(random);
    };
    const KvResidency::Shape shape{.layers = pick(1, 3),
                                   .block_tokens = pick(1, 5),
                                   .device_pages = pick(6, 40),
                                   .host_blocks = pick(0, 12),
                                   .input_blocks = pick(0, 6)};
    KvResidency kv(shape);
    struct Life {
      std::vector<TokenId> tokens;
      std::int64_t max_tokens = 0;
    };
    std::map<std::int32_t, Life> lives;
    // What stands in the tiers: layer 0 is enough, the layers go together.
    std::map<std::pair<int, std::int64_t>, TokenId> content;
    const auto key = [&](SequenceId id, std::int64_t token) {
      const std::int64_t block = token / shape.block_tokens;
      const BlockPlace place = kv.block_place(id, block);
      const bool host = place == BlockPlace::kHost || place == BlockPlace::kReturning;
      const std::int32_t at = host
                                  ? kv.host_block(id, block)
                                  : kv.pages(id, LayerId(0))[static_cast<std::size_t>(block)].value;
      return std::pair(host ? 1 : 0, at * shape.block_tokens + token % shape.block_tokens);
    };
    constexpr int kInputs = 2;  // beside the two tiers: saved layer inputs
    const auto read = [&](SequenceId id, std::int64_t token) {
      const std::int64_t block = token / shape.block_tokens;
      if (kv.block_place(id, block) != BlockPlace::kRecomputable) {
        return content[key(id, token)];
      }
      return content[{kInputs,
                      kv.input_block(id, block) * shape.block_tokens + token % shape.block_tokens}];
    };
    for (int step = 0; step < 150; ++step) {
      const std::int64_t action = pick(0, 6);
      if (action == 0) {
        Life life;
        life.tokens = iota_tokens(static_cast<std::size_t>(pick(1, 12)),
                                  static_cast<TokenId>(pick(0, 1) * 100));
        life.max_tokens = static_cast<std::int64_t>(life.tokens.size()) + pick(0, 10);
        KvResidency::Reservation reservation;
        if (pick(0, 1) == 1) {
          reservation = {.device_blocks = pick(1, 3), .host_blocks = pick(0, 3)};
        }
        if (kv.find_prefix(life.tokens, 0).blocks.empty()) {
          reservation.input_blocks = std::min(pick(0, 3), kv.free_input_blocks());
        }
        const auto admission = kv.admit(life.tokens, life.max_tokens, 0, reservation);
        if (admission.sequence.valid()) lives[admission.sequence.value] = life;
      } else if (!lives.empty()) {
        auto entry = std::next(lives.begin(), pick(0, static_cast<std::int64_t>(lives.size()) - 1));
        const SequenceId id(entry->first);
        Life& life = entry->second;
        const std::int64_t tokens = kv.tokens(id);
        if (action == 1) {
          const std::int64_t count =
              std::min({pick(1, 6), kv.append_room(id), life.max_tokens - tokens});
          if (count > 0) {
            while (static_cast<std::int64_t>(life.tokens.size()) < tokens + count) {
              life.tokens.push_back(static_cast<TokenId>(pick(0, 50)));
            }
            kv.append(id, count);
            for (std::int64_t token = tokens; token < tokens + count; ++token) {
              content[key(id, token)] = life.tokens[static_cast<std::size_t>(token)];
              const std::int32_t inputs = kv.input_block(id, token / shape.block_tokens);
              if (inputs >= 0) {
                content[{kInputs, inputs * shape.block_tokens + token % shape.block_tokens}] =
                    life.tokens[static_cast<std::size_t>(token)];
              }
            }
            kv.publish(id, std::span(life.tokens).first(static_cast<std::size_t>(tokens + count)));
          }
        } else if (action == 2) {
          kv.release(id);
          lives.erase(entry);
        } else if (action == 3) {
          for (std::int64_t block = 0; block < kv.blocks(id); ++block) {
            if (kv.block_place(id, block) != BlockPlace::kHost || kv.input_block(id, block) < 0) {
              continue;
            }
            content[{1, kv.host_block(id, block) * shape.block_tokens}] = -1;  // poison
            kv.discard(id, block);
            ++discarded;
          }
        } else {
          const std::int64_t closed = tokens / shape.block_tokens;
          if (closed > 0) {
            const std::int64_t block = pick(0, closed - 1);
            const bool cancel = pick(0, 4) == 0;
            if (kv.block_place(id, block) == BlockPlace::kDevice && kv.free_host_blocks() > 0) {
              std::vector<TokenId> bytes;
              for (std::int64_t i = 0; i < shape.block_tokens; ++i) {
                bytes.push_back(content[key(id, block * shape.block_tokens + i)]);
              }
              const auto move = kv.begin_offload(id, block);
              kv.check();
              if (cancel) {
                kv.cancel_move(id, block);
              } else {
                for (std::int64_t i = 0; i < shape.block_tokens; ++i) {
                  content[{1, move.host_block * shape.block_tokens + i}] =
                      bytes[static_cast<std::size_t>(i)];
                  content[{0, move.pages[0].value * shape.block_tokens + i}] = -1;  // poison
                }
                kv.finish_offload(id, block);
              }
            } else if (kv.block_place(id, block) == BlockPlace::kHost &&
                       kv.free_pages() + kv.evictable_pages() - kv.reserved_pages() >=
                           shape.layers) {
              const auto move = kv.begin_reload(id, block);
              kv.check();
              if (cancel) {
                kv.cancel_move(id, block);
              } else {
                for (std::int64_t i = 0; i < shape.block_tokens; ++i) {
                  content[{0, move.pages[0].value * shape.block_tokens + i}] =
                      content[{1, move.host_block * shape.block_tokens + i}];
                  content[{1, move.host_block * shape.block_tokens + i}] = -1;
                }
                kv.finish_reload(id, block);
              }
            }
          }
        }
      }
      kv.check();
      for (const auto& [value, life] : lives) {
        for (std::int64_t token = 0; token < kv.tokens(SequenceId(value)); ++token) {
          ASSERT_EQ(read(SequenceId(value), token), life.tokens[static_cast<std::size_t>(token)])
              << "sequence " << value << " token " << token << " step " << step;
        }
      }
    }
  }
  EXPECT_GT(discarded, 100);
}

}  // namespace
}  // namespace triphase
