#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <utility>

#include "base/error.h"
#include "scheduler/kv/kv_book.h"

namespace triphase {
namespace {

std::vector<TokenId> iota_tokens(std::size_t count, TokenId first = 0) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

TEST(KvMoves, AnOffloadedBlockGivesItsSlabBack) {
  KvBook kv({.block_tokens = 4, .device_blocks = 3, .host_blocks = 4});
  const auto admission = kv.admit(iota_tokens(4), 16, 0, {.device_blocks = 2, .host_blocks = 2});
  ASSERT_TRUE(admission.sequence.valid());
  const SequenceId id = admission.sequence;
  kv.append(id, 4);
  EXPECT_EQ(kv.tiers().device.reserved(), 1);
  EXPECT_EQ(kv.tiers().host.free(), 2);
  KvMoves moves;
  kv.placer(moves).offload(id, 1);
  ASSERT_EQ(moves.size(), 1U);
  EXPECT_EQ(moves[0].kind, KvMove::Kind::kOffload);
  EXPECT_EQ(moves[0].slab, kv.table(id)[0].slab);
  EXPECT_GE(moves[0].host_block, 0);
  EXPECT_TRUE(kv.table(id)[0].on_device()) << "read where it was until the move is finished";
  EXPECT_EQ(kv.table(id).on_host(), 1) << "counted where it goes";
  EXPECT_EQ(kv.tiers().device.free(), 2);
  EXPECT_EQ(kv.append_room(id), 8) << "its slab cannot be taken yet";
  kv.finish_moves();
  kv.check();
  EXPECT_EQ(kv.tiers().device.used(), 0);
  EXPECT_EQ(kv.append_room(id), 12);
  EXPECT_EQ(kv.table(id)[0].place, BlockPlace::kHost);
  EXPECT_THROW(kv.placer(moves).offload(id, 1), Error);

  moves.clear();
  kv.placer(moves).load(id, 1);
  EXPECT_EQ(moves.at(0).kind, KvMove::Kind::kLoad);
  EXPECT_FALSE(kv.table(id)[0].on_device());
  EXPECT_EQ(kv.table(id).on_device(), 1);
  kv.finish_moves();
  kv.check();
  EXPECT_EQ(kv.table(id)[0].place, BlockPlace::kDevice);
}

TEST(KvMoves, PartialBlocksStay) {
  KvBook kv({.block_tokens = 4, .device_blocks = 6, .host_blocks = 4});
  const SequenceId id = kv.admit(iota_tokens(3), 8, 0).sequence;
  kv.append(id, 3);
  KvMoves moves;
  EXPECT_THROW(kv.placer(moves).offload(id, 1), Error);
}

TEST(KvMoves, AFullHostRefusesAndReservationsKeepItsBlocks) {
  KvBook kv({.block_tokens = 4, .device_blocks = 8, .host_blocks = 2});
  const SequenceId first = kv.admit(iota_tokens(8), 8, 0, {.host_blocks = 2}).sequence;
  EXPECT_FALSE(kv.admit(iota_tokens(8), 8, 1, {.host_blocks = 1}).sequence.valid());
  const SequenceId second = kv.admit(iota_tokens(8), 8, 1).sequence;
  kv.append(second, 8);
  KvMoves moves;
  EXPECT_THROW(kv.placer(moves).offload(second, 1), Error);
  kv.append(first, 8);
  kv.placer(moves).offload(first, 2);
  kv.check();
}

TEST(KvMoves, OnlyHostBlocksWithSavedInputsAreDiscarded) {
  KvBook kv({.block_tokens = 4, .device_blocks = 8, .host_blocks = 2, .input_blocks = 1});
  const SequenceId id = kv.admit(iota_tokens(8), 12, 0, {.input_blocks = 1}).sequence;
  EXPECT_EQ(kv.tiers().inputs.free(), 0);
  EXPECT_FALSE(kv.admit(iota_tokens(8, 50), 12, 0, {.input_blocks = 1}).sequence.valid());
  kv.append(id, 8);
  EXPECT_EQ(kv.table(id).with_inputs(), 1);
  KvMoves moves;
  EXPECT_THROW(kv.placer(moves).discard(id, 1), Error) << "on the device";
  kv.placer(moves).offload(id, 2);
  moves.clear();
  kv.placer(moves).discard(id, 1);
  ASSERT_EQ(moves.size(), 2U) << "what is on its way arrives first";
  EXPECT_EQ(moves[0].kind, KvMove::Kind::kWait);
  EXPECT_EQ(moves[1].kind, KvMove::Kind::kGiveUp);
  kv.check();
  EXPECT_EQ(kv.table(id)[0].place, BlockPlace::kRecomputable);
  EXPECT_EQ(kv.tiers().host.free(), 1);
  EXPECT_EQ(kv.table(id)[0].host_block, -1);
  EXPECT_THROW(kv.placer(moves).discard(id, 1), Error) << "no cached hidden states";
  kv.release(id, moves);
  kv.check();
  EXPECT_EQ(kv.tiers().inputs.free(), 1);
}

TEST(KvMoves, ADiscardWaitsForTheBlocksItGivesUpAlone) {
  KvBook kv({.block_tokens = 4, .device_blocks = 8, .host_blocks = 2, .input_blocks = 2});
  const SequenceId id = kv.admit(iota_tokens(8), 12, 0, {.input_blocks = 2}).sequence;
  kv.append(id, 8);
  KvMoves moves;
  kv.placer(moves).offload(id, 1);
  kv.finish_moves();
  kv.placer(moves).offload(id, 1);
  moves.clear();
  kv.placer(moves).discard(id, 1);
  ASSERT_EQ(moves.size(), 1U) << "it is there, and the other may go on";
  EXPECT_EQ(moves[0].kind, KvMove::Kind::kGiveUp);
  kv.placer(moves).discard(id, 1);
  ASSERT_EQ(moves.size(), 3U);
  EXPECT_EQ(moves[1].kind, KvMove::Kind::kWait);
  kv.check();
}

TEST(KvMoves, InputsThatAnEndedSequenceLeftDoNotBreakPromises) {
  KvBook kv({.block_tokens = 4, .device_blocks = 8, .host_blocks = 2, .input_blocks = 1});
  const SequenceId first = kv.admit(iota_tokens(5), 8, 0, {.input_blocks = 1}).sequence;
  kv.append(first, 5);
  kv.publish(first, iota_tokens(5));
  KvMoves moves;
  kv.release(first, moves);
  EXPECT_EQ(kv.tiers().inputs.free(), 1);
  const SequenceId second = kv.admit(iota_tokens(4, 50), 4, 0, {.input_blocks = 1}).sequence;
  // Shares the block whose hidden states the second one was promised.
  const auto third = kv.admit(iota_tokens(5), 8, 0);
  EXPECT_EQ(third.shared_tokens, 4);
  kv.check();
  kv.append(second, 4);
  kv.check();
  EXPECT_EQ(kv.table(second).with_inputs(), 1);
}

// Both tiers full: the resumed sequence's slabs are those that the other one leaves.
TEST(KvMoves, APreemptedSequenceWaitsOnTheHostAndSharesNothing) {
  KvBook kv({.block_tokens = 4, .device_blocks = 3, .host_blocks = 6});
  const SequenceId first = kv.admit(iota_tokens(10), 12, 0, {.device_blocks = 3}).sequence;
  kv.append(first, 10);
  kv.publish(first, iota_tokens(10));
  KvMoves moves;
  kv.placer(moves).preempt(first);
  EXPECT_EQ(moves.size(), 3U) << "the partial block too";
  EXPECT_EQ(kv.table(first).on_host(), 3);
  EXPECT_TRUE(kv.find_prefix(iota_tokens(10), 0).blocks.empty());
  kv.finish_moves();
  const SequenceId second = kv.admit(iota_tokens(10), 12, 0, {.device_blocks = 3}).sequence;
  kv.append(second, 10);
  kv.publish(second, iota_tokens(10));
  EXPECT_EQ(kv.table(first)[0].references, 1)
      << "equal blocks of one that waits are not taken over";
  kv.check();
  moves.clear();
  kv.placer(moves).preempt(second);
  kv.placer(moves).resume(first, 2);
  // Three blocks leave, which is waited for; two come back, and are there at once.
  EXPECT_EQ(moves.at(3).kind, KvMove::Kind::kWait);
  EXPECT_EQ(moves.at(4).kind, KvMove::Kind::kLoad);
  EXPECT_EQ(moves.at(6).kind, KvMove::Kind::kWait);
  EXPECT_EQ(moves.size(), 7U);
  EXPECT_FALSE(kv.pool().moving());
  EXPECT_EQ(kv.table(first).on_host(), 1);
  EXPECT_EQ(kv.table(first).on_device(), 2);
  kv.check();
}

// A sequence that shares its first block and has younger ones on the host.
TEST(KvMoves, LoadingASharedBlockLeavesNoHole) {
  KvBook kv({.block_tokens = 4, .device_blocks = 8, .host_blocks = 6});
  const SequenceId first = kv.admit(iota_tokens(9), 12, 0).sequence;
  kv.append(first, 9);
  kv.publish(first, iota_tokens(9));
  const SequenceId second = kv.admit(iota_tokens(5), 12, 0).sequence;
  EXPECT_EQ(kv.table(first)[0].references, 2);
  EXPECT_EQ(kv.table(first).shared(), 1);
  KvMoves moves;
  kv.placer(moves).offload(first, 2);
  kv.finish_moves();
  EXPECT_EQ(kv.table(second).on_host(), 1) << "an action on a block is for all that hold it";
  EXPECT_THROW(kv.placer(moves).load(second, 1), Error);
  EXPECT_THROW(kv.placer(moves).preempt(second), Error);
  kv.placer(moves).load(first, 2);
  kv.finish_moves();
  EXPECT_EQ(kv.table(second).on_device(), 1);
  kv.check();
}

TEST(KvMoves, PlacesOnTheHostAreGivenUpByTheLastThatHasThem) {
  KvBook kv({.block_tokens = 4, .device_blocks = 8, .host_blocks = 6});
  const SequenceId first = kv.admit(iota_tokens(9), 12, 0).sequence;
  kv.append(first, 9);
  kv.publish(first, iota_tokens(9));
  const SequenceId second = kv.admit(iota_tokens(5), 12, 0).sequence;
  KvMoves moves;
  kv.placer(moves).offload(first, 2);
  kv.finish_moves();
  const std::int32_t shared = kv.table(first)[0].host_block;
  const std::int32_t own = kv.table(first)[1].host_block;
  EXPECT_EQ(kv.find_prefix(iota_tokens(9), 0).offloaded, 2);
  moves.clear();
  kv.release(first, moves);
  ASSERT_EQ(moves.size(), 1U);
  EXPECT_EQ(moves[0].kind, KvMove::Kind::kGiveUp);
  EXPECT_EQ(moves[0].host_block, own);
  moves.clear();
  kv.release(second, moves);
  ASSERT_EQ(moves.size(), 1U);
  EXPECT_EQ(moves[0].host_block, shared);
  kv.check();
  EXPECT_EQ(kv.find_prefix(iota_tokens(9, 50), 0).offloaded, 0);
}

// What an ended prompt left on the host is found there: nobody computes it again.
TEST(KvMoves, ABlockThatNobodyHoldsIsSharedOnTheHost) {
  KvBook kv({.block_tokens = 4, .device_blocks = 8, .host_blocks = 4});
  const std::vector<TokenId> prompt = iota_tokens(14);
  KvMoves moves;
  const auto live = [&] {
    const KvBook::Admission admission = kv.admit(prompt, 16, 0, {.device_blocks = 0});
    const SequenceId id = admission.sequence;
    if (!id.valid()) return admission;
    kv.append(id, 14 - admission.shared_tokens);
    kv.publish(id, prompt);
    return admission;
  };
  const SequenceId first = live().sequence;
  kv.placer(moves).offload(first, 2);
  kv.finish_moves();
  kv.release(first, moves);
  kv.check();
  const KvBook::Prefix left = kv.find_prefix(prompt, 0);
  EXPECT_EQ(left.blocks.size(), 3U);
  EXPECT_EQ(left.referenced, 0);
  EXPECT_EQ(left.offloaded, 2);
  EXPECT_EQ(left.unheld_on_host, 2);
  EXPECT_EQ(kv.tiers().host.free(), 4) << "they count as free until they are taken";
  // Two places on the host are theirs, so that a reservation can have the others alone.
  EXPECT_FALSE(kv.admit(prompt, 24, 0, {.device_blocks = 0, .host_blocks = 3}).sequence.valid());
  kv.check();
  const KvBook::Admission second = live();
  EXPECT_EQ(second.shared_tokens, 12);
  EXPECT_EQ(kv.table(second.sequence).on_host(), 2);
  EXPECT_EQ(kv.tiers().host.free(), 2);
  EXPECT_EQ(kv.tiers().device.free(), 8 - 2);
  kv.check();
  // A sequence that keeps its oldest block on the device cannot have the next one on the host.
  kv.placer(moves).load(second.sequence, 2);
  kv.finish_moves();
  kv.placer(moves).offload(second.sequence, 3);
  kv.finish_moves();
  const SequenceId other = kv.admit(std::span(prompt).first(6), 8, 0).sequence;
  ASSERT_EQ(kv.table(other).on_host(), 1);
  kv.release(second.sequence, moves);
  kv.placer(moves).load(other, 1);
  kv.finish_moves();
  kv.check();
  EXPECT_EQ(kv.find_prefix(prompt, 0).blocks.size(), 1U);
  // Who computes it again has it found again, by all.
  const KvBook::Admission third = live();
  EXPECT_EQ(third.shared_tokens, 4);
  EXPECT_EQ(kv.table(third.sequence).on_device(), 4);
  EXPECT_EQ(kv.tiers().host.free(), 4);
  EXPECT_EQ(kv.find_prefix(prompt, 0).referenced, 3);
  kv.check();
}

// Both computed the same prompt: the one that publishes it later goes on with the other's block.
TEST(KvMoves, ABlockThatIsReplacedLeavesItsHiddenStatesAndItsMirror) {
  KvBook kv({.block_tokens = 4, .device_blocks = 8, .host_blocks = 6, .input_blocks = 2});
  const SequenceId first = kv.admit(iota_tokens(5), 12, 0).sequence;
  const SequenceId second = kv.admit(iota_tokens(5), 12, 0, {.input_blocks = 1}).sequence;
  for (const SequenceId id : {first, second}) {
    kv.append(id, 5);
    kv.publish(id, iota_tokens(5));
  }
  EXPECT_EQ(kv.table(first).number(0), kv.table(second).number(0));
  EXPECT_EQ(kv.table(second).with_inputs(), 1);
  EXPECT_GE(kv.table(first)[0].input_block, 0);
  EXPECT_EQ(kv.tiers().inputs.free(), 1);
  kv.check();

  KvBook mirrored({.block_tokens = 4, .device_blocks = 8, .host_blocks = 6, .mirrored = true});
  const SequenceId one = mirrored.admit(iota_tokens(5), 12, 0, {.host_blocks = 3}).sequence;
  const SequenceId two = mirrored.admit(iota_tokens(5), 12, 0, {.host_blocks = 3}).sequence;
  for (const SequenceId id : {one, two}) {
    mirrored.append(id, 5);
    mirrored.publish(id, iota_tokens(5));
  }
  EXPECT_EQ(mirrored.table(one).number(0), mirrored.table(two).number(0));
  EXPECT_EQ(mirrored.sequence(two).mirrors, 1) << "its partial block's";
  mirrored.check();
}

TEST(KvMoves, AJobThatIsGivenUpLeavesNothing) {
  KvBook kv({.block_tokens = 4, .device_blocks = 8, .host_blocks = 6});
  const SequenceId id = kv.admit(iota_tokens(9), 12, 0).sequence;
  kv.append(id, 9);
  kv.publish(id, iota_tokens(9));
  KvMoves moves;
  kv.placer(moves).offload(id, 1);
  kv.give_up();
  kv.check();
  EXPECT_EQ(kv.tiers().device.free(), 8);
  EXPECT_EQ(kv.tiers().host.free(), 6);
  EXPECT_EQ(kv.admit(iota_tokens(9), 12, 0).shared_tokens, 0);
}

// Random lives of sequences whose blocks move to and fro and are discarded: no page, host block or
// input block is lost or held twice, every promise holds, and every token keeps the bytes that were
// written for it or for its hidden states. In half of the lives layers with a window are apart:
// what the next token reads there stands in window blocks.
TEST(KvBookMovesProperty, RandomMovesKeepEveryTokensContent) {
  int discarded = 0;
  int let_go = 0;  // tokens that no window reaches, of sequences that run
  int shared = 0;  // tokens
  for (int seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto pick = [&random](std::int64_t low, std::int64_t high) {
      return std::uniform_int_distribution<std::int64_t>(low, high)(random);
    };
    KvBook::Shape shape{.block_tokens = pick(1, 5),
                        .device_blocks = pick(6, 20),
                        .host_blocks = pick(0, 12),
                        .input_blocks = pick(0, 6),
                        .windows = seed % 2 == 0 ? KvWindowShape{}
                                                 : KvWindowShape{.tokens = pick(1, 9),
                                                                 .blocks = pick(1, 2),
                                                                 .step_tokens = pick(1, 8)}};
    const std::int64_t windows = shape.windows.blocks;
    shape.device_blocks += windows * window_store(shape.windows, shape.block_tokens) + 4 * windows;
    KvBook kv(shape);
    struct Life {
      std::vector<TokenId> tokens;
      std::int64_t max_tokens = 0;
    };
    std::map<std::int32_t, Life> lives;
    // What stands in the tiers.
    std::map<std::pair<int, std::int64_t>, TokenId> content;
    const auto key = [&](SequenceId id, std::int64_t token) {
      const KvBlock& block = kv.table(id)[token / shape.block_tokens];
      const std::int32_t at = block.on_device() ? block.slab : block.host_block;
      return std::pair(block.on_device() ? 0 : 1,
                       at * shape.block_tokens + token % shape.block_tokens);
    };
    constexpr int kInputs = 2;  // beside the two tiers: cached hidden states
    const auto read = [&](SequenceId id, std::int64_t token) {
      const std::int64_t block = token / shape.block_tokens;
      if (kv.table(id)[block].place != BlockPlace::kRecomputable) {
        return content[key(id, token)];
      }
      return content[{kInputs, kv.table(id)[block].input_block * shape.block_tokens +
                                   token % shape.block_tokens}];
    };
    // Of one of the token's window blocks; nothing: it is let go.
    const auto window_key = [&](SequenceId id, std::int64_t token,
                                std::int64_t index) -> std::optional<std::pair<int, std::int64_t>> {
      const std::int32_t number = kv.table(id).window(token / shape.block_tokens, index);
      if (number == KvBlock::kNone) return std::nullopt;
      return std::pair(0, kv.pool()[number].slab * shape.block_tokens + token % shape.block_tokens);
    };
    KvMoves moves;
    // Copies arrive when they are waited for; then what they were copied from is poisoned.
    KvMoves under_way;
    const auto arrive = [&] {
      for (const KvMove& move : under_way) {
        const bool load = move.kind == KvMove::Kind::kLoad;
        for (std::int64_t i = 0; i < shape.block_tokens; ++i) {
          TokenId& slab = content[{0, move.slab * shape.block_tokens + i}];
          TokenId& host = content[{1, move.host_block * shape.block_tokens + i}];
          (load ? slab : host) = std::exchange(load ? host : slab, -1);
        }
      }
      under_way.clear();
    };
    const auto carry_out = [&] {
      for (const KvMove& move : moves) {
        if (move.kind == KvMove::Kind::kWait) arrive();
        const bool findable = kv.pool()[move.block].host_block == move.host_block;
        if (move.kind == KvMove::Kind::kGiveUp && !findable) {
          content[{1, move.host_block * shape.block_tokens}] = -1;
        }
        if (move.slab >= 0) under_way.push_back(move);
      }
      moves.clear();
    };
    for (int step = 0; step < 150; ++step) {
      const std::int64_t action = pick(0, 7);
      if (action == 7) {
        arrive();
        kv.finish_moves();
      }
      if (action == 0) {
        Life life;
        life.tokens = iota_tokens(static_cast<std::size_t>(pick(1, 12)),
                                  static_cast<TokenId>(pick(0, 1) * 100));
        life.max_tokens = static_cast<std::int64_t>(life.tokens.size()) + pick(0, 10);
        KvReservation reservation;
        if (pick(0, 1) == 1) {
          reservation = {.device_blocks = pick(1, 3), .host_blocks = pick(0, 3)};
        }
        if (kv.find_prefix(life.tokens, 0).blocks.empty()) {
          reservation.input_blocks = std::min(pick(0, 3), kv.tiers().inputs.free());
        }
        const auto admission = kv.admit(life.tokens, life.max_tokens, 0, reservation);
        if (admission.sequence.valid()) lives[admission.sequence.value] = life;
        if (windows > 0) shared += static_cast<int>(admission.shared_tokens);
      } else if (!lives.empty()) {
        auto entry = std::next(lives.begin(), pick(0, static_cast<std::int64_t>(lives.size()) - 1));
        const SequenceId id(entry->first);
        Life& life = entry->second;
        const std::int64_t tokens = kv.sequence(id).tokens;
        if (action == 1) {
          kv.advance_windows();
          const std::int64_t count =
              std::min({pick(1, 6), kv.append_room(id), life.max_tokens - tokens});
          if (count > 0) {
            while (static_cast<std::int64_t>(life.tokens.size()) < tokens + count) {
              life.tokens.push_back(static_cast<TokenId>(pick(0, 50)));
            }
            kv.append(id, count);
            for (std::int64_t token = tokens; token < tokens + count; ++token) {
              content[key(id, token)] = life.tokens[static_cast<std::size_t>(token)];
              for (std::int64_t index = 0; index < windows; ++index) {
                content[window_key(id, token, index).value()] =
                    life.tokens[static_cast<std::size_t>(token)];
              }
              const std::int32_t inputs = kv.table(id)[token / shape.block_tokens].input_block;
              if (inputs >= 0) {
                content[{kInputs, inputs * shape.block_tokens + token % shape.block_tokens}] =
                    life.tokens[static_cast<std::size_t>(token)];
              }
            }
            kv.publish(id, std::span(life.tokens).first(static_cast<std::size_t>(tokens + count)));
          }
        } else if (action == 2) {
          kv.release(id, moves);
          lives.erase(entry);
        } else if (action == 3) {
          std::int64_t count = 0;
          while (count < kv.table(id).on_host() &&
                 kv.table(id)[kv.table(id).recomputable() + count].input_block >= 0) {
            ++count;
          }
          kv.placer(moves).discard(id, count);
          discarded += static_cast<int>(count);
        } else if (action <= 5) {
          const std::int64_t full = tokens / shape.block_tokens - kv.table(id).offloaded();
          const std::int64_t count =
              std::min({pick(1, 3), full, kv.tiers().host.free() + kv.sequence(id).reserved_host});
          if (count > 0) kv.placer(moves).offload(id, count);
        } else if (action == 6 && kv.table(id).shared() == 0) {
          const std::int64_t count =
              std::min({pick(1, 3), kv.table(id).on_host(),
                        kv.tiers().device.free() + kv.sequence(id).reserved_device});
          if (count > 0) kv.placer(moves).load(id, count);
        }
      }
      carry_out();
      kv.check();
      for (const auto& [value, life] : lives) {
        for (std::int64_t token = 0; token < kv.sequence(SequenceId(value)).tokens; ++token) {
          const TokenId expected = life.tokens[static_cast<std::size_t>(token)];
          ASSERT_EQ(read(SequenceId(value), token), expected)
              << "sequence " << value << " token " << token << " step " << step;
          for (std::int64_t index = 0; index < windows; ++index) {
            const auto at = window_key(SequenceId(value), token, index);
            const std::int64_t next = kv.sequence(SequenceId(value)).tokens;
            ASSERT_TRUE(at || token + shape.windows.tokens <= next) << "step " << step;
            if (at) {
              ASSERT_EQ(content[*at], expected) << "step " << step;
            }
            let_go += at ? 0 : 1;
          }
        }
      }
    }
  }
  EXPECT_GT(discarded, 100);
  EXPECT_GT(let_go, 1000);
  EXPECT_GT(shared, 100);
}

}  // namespace
}  // namespace triphase
