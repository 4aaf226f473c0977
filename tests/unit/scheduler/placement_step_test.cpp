#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "scheduler/placement/device_only_policy.h"
#include "scheduler/placement/triphase_policy.h"
#include "tests/unit/scheduler/placement_world.h"

namespace triphase {
namespace {

// The last token of a prompt is computed, and blocks are shared whole.
TEST(WaitsForPrefix, AsFarAsTheOthersGetInWholeBlocks) {
  const std::vector<TokenId> a = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<TokenId> b = {1, 2, 3, 4, 5, 6, 9, 9, 9};
  // How many tokens of `other` must be there, so that `prompt` need not wait for more.
  const auto awaited = [](std::span<const TokenId> prompt, std::span<const TokenId> other,
                          std::int64_t block_tokens) {
    const WaitingRequest request{.tokens = prompt};
    const WaitingRequest before{.tokens = other};
    const bool waits = waits_for_prefix(request, {}, {&before, 1}, block_tokens);
    PlacedRequest running{.prefill_tokens = 100, .tokens = other};
    EXPECT_EQ(waits_for_prefix(request, {&running, 1}, {}, block_tokens), waits);
    while (waits_for_prefix(request, {&running, 1}, {}, block_tokens)) ++running.context;
    return running.context;
  };
  EXPECT_EQ(awaited(a, b, 2), 6);
  EXPECT_EQ(awaited(a, b, 4), 4);
  EXPECT_EQ(awaited(a, a, 4), 4);
  EXPECT_EQ(awaited(a, a, 1), 7);
  EXPECT_EQ(awaited({}, a, 4), 0);
  const std::vector<TokenId> other_start = {9, 2, 3, 4};
  EXPECT_EQ(awaited(a, other_start, 1), 0);
  // A running prompt may compute again what is found.
  const PlacedRequest again{.prefill_tokens = 100, .tokens = b};
  EXPECT_TRUE(waits_for_prefix({.tokens = a}, {&again, 1}, {}, 2));
  EXPECT_FALSE(waits_for_prefix({.tokens = a, .shared_blocks = 3}, {&again, 1}, {}, 2));
  // Not for what is found, for a prompt that is computed, or for the KV of another context.
  const WaitingRequest found{.tokens = a, .shared_blocks = 3};
  const WaitingRequest before{.tokens = b};
  EXPECT_FALSE(waits_for_prefix(found, {}, {&before, 1}, 2));
  const PlacedRequest done{.prefill_tokens = 0, .tokens = b};
  const PlacedRequest other_key{.prefill_tokens = 100, .context_key = 1, .tokens = b};
  const WaitingRequest request{.tokens = a};
  EXPECT_FALSE(waits_for_prefix(request, {&done, 1}, {}, 2));
  EXPECT_FALSE(waits_for_prefix(request, {&other_key, 1}, {}, 2));
}

// Two requests that run: the first with room to spare, the second with so many tokens.
class TwoRequests : public testing::Test {
 protected:
  void start(const PlacementLimits& limits, std::int64_t first, std::int64_t second,
             const KvReservation& reservation = {.device_blocks = 0}) {
    limits_ = limits;
    book_ = KvBook({.block_tokens = limits.block_tokens,
                    .device_blocks = limits.device_blocks,
                    .host_blocks = limits.host_blocks});
    running_.clear();
    for (const std::int64_t tokens : {first, second}) {
      const SequenceId id = book_.admit({}, 24, 0, reservation).sequence;
      book_.append(id, tokens);
      running_.push_back({.id = id,
                          .prompt_tokens = tokens,
                          .prefill_tokens = tokens,
                          .context = tokens,
                          .max_tokens = 24});
    }
  }
  [[nodiscard]] PlacementStep step() { return {limits_, 0, book_, running_, {}, {}}; }
  // What becomes of the second one if it has to make room.
  [[nodiscard]] PreemptMode preempted() {
    PlacementStep now = step();
    const std::int64_t free = book_.tiers().device.free();
    const std::int64_t held =
        book_.table(running_[1].id).on_device() + book_.sequence(running_[1].id).reserved_device;
    now.preempt(running_[1].id);
    EXPECT_EQ(book_.tiers().device.free(), free + held);
    EXPECT_EQ(now.running().size(), 1U);
    return std::get<Preempt>(now.actions().at(0)).mode;
  }

  PlacementLimits limits_;
  KvBook book_{KvBook::Shape{}};
  std::vector<PlacedRequest> running_;
};

// Five blocks of four tokens, the last one partial.
TEST_F(TwoRequests, ARequestWaitsOnTheHostWhereThatHasRoomForAllOfIt) {
  PlacementLimits limits = small_limits();
  limits.host_blocks = 5;
  start(limits, 4, 17);
  EXPECT_EQ(preempted(), PreemptMode::kSwap);
  limits.host_blocks = 4;
  start(limits, 4, 17);
  EXPECT_EQ(preempted(), PreemptMode::kDrop);
  start(limits, 4, 16, {.device_blocks = 0, .host_blocks = 2});
  EXPECT_EQ(preempted(), PreemptMode::kDrop) << "the other one's reservation is not its";
  limits.host_blocks = 5;
  start(limits, 4, 17);
  KvMoves moves;
  book_.placer(moves).offload(running_[1].id, 1);
  book_.finish_moves();
  EXPECT_EQ(preempted(), PreemptMode::kSwap) << "what is there needs no room";
}

TEST_F(TwoRequests, OneWithoutAPlaceForItsPartialBlockIsDropped) {
  PlacementLimits limits = small_limits();
  limits.partial_blocks = 1;
  start(limits, 4, 17);
  EXPECT_EQ(preempted(), PreemptMode::kDrop);
  limits.partial_blocks = 2;
  start(limits, 4, 17);
  EXPECT_EQ(preempted(), PreemptMode::kSwap);
}

// Requests under `triphase` seldom have to: here both tiers are full.
TEST_F(TwoRequests, ARequestIsComputedAgainWhereTheHostIsFull) {
  PlacementLimits limits = small_limits();
  limits.host_blocks = 0;
  start(limits, 20, 20);
  PlacementStep now = step();
  TriphasePolicy({.p1 = 1000, .p2 = 1000}).decide(now);
  EXPECT_THAT(now.actions(), testing::ElementsAre(Preempt{running_[1].id, PreemptMode::kDrop}));
}

// Each in a step of its own, over a copy of the book.
TEST_F(TwoRequests, TheStepRefusesWhatOverCommits) {
  PlacementLimits limits = small_limits();
  limits.device_blocks = 5;
  limits.host_blocks = 1;
  start(limits, 4, 9);  // one block and three: one is free
  const SequenceId second = running_[1].id;
  const auto attempt = [&](const std::function<void(PlacementStep&)>& actions) {
    KvBook book = book_;
    PlacementStep now(limits, 0, book, running_, {},
                      queue_of({{.prompt_tokens = 4, .max_tokens = 8}}));
    EXPECT_NE(now.waiting(0), nullptr);
    EXPECT_EQ(now.waiting(1), nullptr);
    actions(now);
    static_cast<void>(now.finish());
  };
  EXPECT_NO_THROW(attempt([](PlacementStep&) {}));
  EXPECT_NO_THROW(attempt([&](PlacementStep& now) {
    now.offload(second, 1);
    now.admit({0, 1});
  }));
  EXPECT_THROW(attempt([](PlacementStep& now) {
                 now.admit({0, 1});
               }),
               Error)
      << "the first one begins a block";
  EXPECT_THROW(attempt([](PlacementStep& now) {
                 now.admit({0, 2});
               }),
               Error)
      << "two blocks, one is free";
  EXPECT_THROW(attempt([](PlacementStep& now) { now.admit({1, 0}); }), Error) << "unknown";
  EXPECT_THROW(attempt([&](PlacementStep& now) {
                 now.admit({0, 0});
                 now.offload(second, 1);
               }),
               Error);
  EXPECT_THROW(attempt([&](PlacementStep& now) { now.offload(second, 2); }), Error)
      << "the host is full";
  EXPECT_THROW(attempt([](PlacementStep& now) { now.offload(SequenceId(8), 1); }), Error)
      << "unknown";
  EXPECT_THROW(attempt([&](PlacementStep& now) { now.discard(second, 1); }), Error)
      << "not on the host";
  EXPECT_THROW(attempt([&](PlacementStep& now) { now.load(second, 1); }), Error)
      << "not on the host";
  EXPECT_THROW(attempt([&](PlacementStep& now) {
                 now.preempt(running_[0].id, PreemptMode::kDrop);
                 now.preempt(second, PreemptMode::kDrop);
               }),
               Error)
      << "nothing would run";
  limits.host_blocks = 20;
  start(limits, 4, 9);
  EXPECT_THROW(attempt([&](PlacementStep& now) { now.offload(running_[1].id, 3); }), Error)
      << "partial block";
}

TEST_F(TwoRequests, ARequestIsResumedOnce) {
  const PlacementLimits limits = small_limits();
  start(limits, 4, 9);
  KvMoves moves;
  book_.placer(moves).preempt(running_[1].id);
  book_.finish_moves();
  PlacedRequest waiting = running_[1];
  waiting.mode = PreemptMode::kSwap;
  PlacementStep now(limits, 0, book_, {running_[0]}, {waiting}, {});
  now.resume(0, 2);
  EXPECT_THROW(now.resume(0, 1), Error);
}

// Looking for a prompt's blocks takes time: only those are looked at that the step may have room
// for.
TEST(DeviceOnly, LooksAtOnePromptMoreThanItAdmits) {
  PlacementLimits limits = small_limits();
  limits.device_blocks = 10;
  limits.batch_size = 100;
  KvBook book({.block_tokens = limits.block_tokens, .device_blocks = limits.device_blocks});
  std::size_t asked = 0;
  PlacementStep step(limits, 0, book, {}, {}, {.size = 100, .request = [&](std::size_t place) {
                                                 EXPECT_EQ(place, asked++);
                                                 return WaitingRequest{.prompt_tokens = 4,
                                                                       .max_tokens = 16};
                                               }});
  DeviceOnlyPolicy().decide(step);
  EXPECT_EQ(step.running_count(), 2);
  EXPECT_EQ(asked, 3U);
  limits.batch_size = 2;
  PlacementStep full(limits, 0, book, step.running(), {}, {.size = 1, .request = [](std::size_t) {
                                                             ADD_FAILURE() << "no place";
                                                             return WaitingRequest{};
                                                           }});
  EXPECT_EQ(full.waiting(0), nullptr);
}

}  // namespace
}  // namespace triphase
