#include "scheduler/batch_planner.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace triphase {
namespace {

TEST(PlanStep, DecodesEverybodyAndFillsTheRestWithTheOldestPrompts) {
  const std::vector<SequenceProgress> running = {{0}, {100}, {0}, {5}};
  EXPECT_EQ(plan_step(running, {.rows = 32, .prefill_chunk = 16}),
            (std::vector<std::int64_t>{1, 16, 1, 0}));
  EXPECT_EQ(plan_step(running, {.rows = 200, .prefill_chunk = 103}),
            (std::vector<std::int64_t>{1, 100, 1, 3}));
  EXPECT_EQ(plan_step(running, {.rows = 1, .prefill_chunk = 16}),
            (std::vector<std::int64_t>{1, 0, 0, 0}));
}

TEST(PlanStepProperty, KeepsTheLimitsAndAlwaysMovesOn) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<SequenceProgress> running(random() % 8 + 1);
    for (auto& sequence : running) sequence.prompt_left = random() % 3 == 0 ? 0 : random() % 40;
    const StepLimits limits{.rows = static_cast<std::int64_t>(random() % 30 + 1),
                            .prefill_chunk = static_cast<std::int64_t>(random() % 30 + 1)};
    const auto tokens = plan_step(running, limits);
    ASSERT_EQ(tokens.size(), running.size());
    std::int64_t prefill = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      ASSERT_LE(tokens[i], std::max<std::int64_t>(running[i].prompt_left, 1));
      if (running[i].prompt_left > 0) prefill += tokens[i];
    }
    const std::int64_t all = std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0});
    ASSERT_GT(all, 0);
    ASSERT_LE(all, limits.rows);
    ASSERT_LE(prefill, limits.prefill_chunk);
  }
}

TEST(ShareableTokens, CountsWholeBlocksAndLeavesTheLastTokenOut) {
  const std::vector<TokenId> a = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<TokenId> b = {1, 2, 3, 4, 5, 6, 9, 9, 9};
  EXPECT_EQ(shareable_tokens(a, b, 2), 6);
  EXPECT_EQ(shareable_tokens(a, b, 4), 4);
  EXPECT_EQ(shareable_tokens(a, a, 4), 4);
  EXPECT_EQ(shareable_tokens(a, a, 1), 7);
  EXPECT_EQ(shareable_tokens({}, a, 4), 0);
}

}  // namespace
}  // namespace triphase
