#include "scheduler/batch_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "base/error.h"

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

TEST(PlanStep, NeverCutsAUnitOfAPrompt) {
  // 30 tokens of context, then units of 8.
  const StepLimits limits{.rows = 20, .prefill_chunk = 16, .units = {30, 8}};
  const auto rows_of = [&](std::vector<SequenceProgress> running) {
    return plan_step(running, limits);
  };
  EXPECT_EQ(rows_of({{60, 0}}), (std::vector<std::int64_t>{16}));
  EXPECT_EQ(rows_of({{44, 16}}), (std::vector<std::int64_t>{14}));  // to the context's end
  EXPECT_EQ(rows_of({{40, 20}}), (std::vector<std::int64_t>{10}));
  EXPECT_EQ(rows_of({{30, 30}}), (std::vector<std::int64_t>{16}));
  EXPECT_EQ(rows_of({{13, 30}, {5, 62}}), (std::vector<std::int64_t>{13, 0}));
  EXPECT_EQ(rows_of({{12, 30}, {4, 62}}), (std::vector<std::int64_t>{12, 4}));
  EXPECT_EQ(rows_of({{9, 29}, {9, 30}}), (std::vector<std::int64_t>{9, 0}));
  EXPECT_EQ(rows_of({{0, 99}, {7, 38}}), (std::vector<std::int64_t>{1, 7}));
  EXPECT_THROW((void)plan_step(std::vector<SequenceProgress>{{9, 30}},
                               {.rows = 20, .prefill_chunk = 7, .units = {30, 8}}),
               Error);
  EXPECT_EQ(limits.units.causal_tokens(29), 29);
  EXPECT_EQ(limits.units.causal_tokens(31), 30);
  EXPECT_EQ(PromptUnits{}.causal_tokens(31), 31);
}

TEST(PlanStepProperty, PromptsWithUnitsAreComputedToTheirEnds) {
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    const auto rows = static_cast<std::int64_t>(random() % 12 + 1);
    const StepLimits limits{.rows = rows + 8,
                            .prefill_chunk = rows + static_cast<std::int64_t>(random() % 5),
                            .units = {static_cast<std::int64_t>(random() % 30), rows}};
    std::vector<SequenceProgress> running(random() % 4 + 1);
    for (auto& sequence : running) sequence.prompt_left = random() % 60 + 1;
    int steps = 0;
    while (std::ranges::any_of(running, [](const auto& one) { return one.prompt_left > 0; })) {
      ASSERT_LT(++steps, 500);
      const auto tokens = plan_step(running, limits);
      for (std::size_t i = 0; i < running.size(); ++i) {
        SequenceProgress& one = running[i];
        if (one.prompt_left == 0) continue;
        one.computed += tokens[i];
        one.prompt_left -= tokens[i];
        const std::int64_t into = one.computed - limits.units.first;
        ASSERT_TRUE(one.prompt_left == 0 || into <= 0 || into % rows == 0);
      }
    }
  }
}

}  // namespace
}  // namespace triphase
