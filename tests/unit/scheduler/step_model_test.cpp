// Steps of a uniform batch whose cost and bytes follow by hand (plane_profile.h).

#include "scheduler/planner/step_model.h"

#include <gtest/gtest.h>

#include "scheduler/planner/planner.h"
#include "tests/unit/scheduler/plane_profile.h"

namespace triphase {
namespace {

constexpr double kClose = 1e-9;

// K and V of a token: 2 layers x 2 x 4 x 2 bytes = 32; its cached hidden states: 2 x (4 + 4) = 16.
// Layers of 100 bytes.
class HandComputedStep : public testing::Test {
 protected:
  [[nodiscard]] StepModel steps() const { return {cost_, model_, workload_, budget_}; }

  CostModel cost_{plane_profile()};
  PlanModel model_{.costs = countable_model(), .block_tokens = 4, .prefill_chunk = 8, .scratch = 0};
  PlanWorkload workload_{.batch = 2, .input_len = 10, .output_len = 20};
  PlanBudget budget_{.device_memory = 1'000'000, .host_memory = 1'000'000};
};

TEST_F(HandComputedStep, DenseDecodeBringsWholeBlocksAndWeights) {
  model_.streamed_layers = 1;
  const LaneTimes lanes = steps().decode({.context = 20, .host = 8, .newly_offloaded = 4}, 0);
  EXPECT_NEAR(lanes.compute, 10 + 2 + 40 / 2.0, kClose);
  EXPECT_NEAR(lanes.h2d, 2 * (1 + (2 * 8 * 32 + 100) / 2.0 / 1000), kClose);
  EXPECT_NEAR(lanes.d2h, 2 * (2 + 2 * 4 * 32 / 2.0 / 500), kClose);
  EXPECT_NEAR(lanes.step, 32 + lanes.h2d / 2, kClose) << "no staging: the first layer waits";
  const LaneTimes recomputed = steps().decode({.context = 20, .host = 8, .recompute = 4}, 8);
  EXPECT_NEAR(recomputed.recompute, 3 * 2 + 2 * 4, kClose);
  EXPECT_NEAR(recomputed.h2d, 2 * (1 + (2 * 4 * 32 + 2 * 4 * 16 + 100) / 2.0 / 1000), kClose);
  model_.kv_dtype = DType::kInt8;
  EXPECT_NEAR(steps().decode({.context = 20}, 0).compute, 5 + 2 + 40 / 4.0 + 1 + 2 / 10.0, kClose)
      << "the new token is quantized";
}

// Of 24 pages 9 are for staging. The step before fetches for the first layer what is certain to be
// there: not what goes to the host now, nor what may be recomputed instead. A quarter of staging,
// or the largest sequence's blocks, stay free, and each sequence takes a page more.
TEST_F(HandComputedStep, WhatTheStepBeforeFetchesIsNotWaitedFor) {
  budget_ = {.device_memory = 250 + 24 * 64, .host_memory = 16 * 128};
  const auto step = [&](const StepTokens& tokens, std::int64_t inputs) {
    return steps().decode(tokens, inputs).step;
  };
  const double compute = 10 + 2 + 48 / 2.0;
  const auto layer_loads = [](double host) { return 1 + 2 * host * 32 / 2 / 1000; };
  EXPECT_NEAR(step({.context = 24, .host = 8}, 0), compute, kClose) << "7 pages for 4 blocks and 2";
  EXPECT_NEAR(step({.context = 24, .host = 12}, 0), compute + layer_loads(12) * (1 - 6 / 8.0),
              kClose);
  EXPECT_NEAR(step({.context = 24, .host = 16}, 0), compute + layer_loads(16) * (1 - 5 / 10.0),
              kClose);
  EXPECT_NEAR(step({.context = 24, .host = 12, .newly_offloaded = 4}, 0),
              compute + layer_loads(12) * (1 - 8 / 12.0), kClose);
  EXPECT_NEAR(step({.context = 24, .host = 12}, 4), compute + layer_loads(12) * (1 - 8 / 12.0),
              kClose);
  EXPECT_NEAR(step({.context = 24, .host = 12, .newly_offloaded = 12}, 0),
              compute + layer_loads(12), kClose);
}

// Of 20 tokens 10 are attended: 5 in the window, 5 of the 15 older ones. 12 of those are on the
// host: 4 of the 5, and half of these miss the cache, which has room for one block: 2 of each
// sequence.
TEST_F(HandComputedStep, SparseDecodeGathersItsShareOfTheHost) {
  budget_ = {.device_memory = 250 + 24 * 64, .host_memory = 16 * 128};
  workload_.caching_ratio = 0.5;
  workload_.miss_rate = 0.5;
  LaneTimes lanes = steps().decode({.context = 20, .host = 12}, 0);
  EXPECT_NEAR(lanes.compute, 10 + 2 + 20 / 2.0, kClose);
  EXPECT_NEAR(lanes.h2d, 0.5 + 2 * 2 * 2 * 16 / 1000.0, kClose);
  workload_.miss_rate = 0.25;
  EXPECT_NEAR(steps().decode({.context = 20, .host = 12}, 0).h2d, lanes.h2d, kClose)
      << "no more hits than there is room for";
  workload_.miss_rate = 0.75;
  EXPECT_NEAR(steps().decode({.context = 20, .host = 12}, 0).h2d, 0.5 + 2 * 2 * 3 * 16 / 1000.0,
              kClose);
  workload_.miss_rate = 0.5;
  lanes = steps().decode({.context = 20, .host = 12, .recompute = 6}, 12);
  EXPECT_NEAR(lanes.recompute, 3 * 2 + 2 * 1, kClose);
  EXPECT_NEAR(lanes.h2d, (0.5 + 2 * 2 * 16 / 1000.0) + (0.5 + 2 * 2 * 8 / 1000.0), kClose);
  EXPECT_NEAR(steps().printed_transfer({.context = 20, .host = 12}, 0),
              1 + 4.0 * 2 * 2 * 4 * (12 + 2) / 1000, kClose);
  model_.fetch = SparseFetch::kOnDemand;
  lanes = steps().decode({.context = 20, .host = 12}, 0);
  EXPECT_NEAR(lanes.step, lanes.compute + lanes.h2d, kClose);
  model_.fetch = SparseFetch::kWholeBlocks;
  lanes = steps().decode({.context = 20, .host = 12}, 0);
  EXPECT_NEAR(lanes.h2d, 2 * (1 + 2 * 12 * 32 / 2.0 / 1000), kClose);
  EXPECT_NEAR(lanes.compute, 22, kClose) << "it reads them, but attends fewer";
}

// One of the two layers attends the last 10 of 20 tokens, and reads the host from their block on:
// tokens 8 to 11 of 12. Half of the tokens are recomputable; of these it needs none.
// With requests of no more than 24 tokens it keeps all its tokens as the other does.
TEST_F(HandComputedStep, ALayerWithAWindowReadsWhatLiesInIt) {
  workload_.output_len = 14;
  model_.costs.sliding = {{.window = 10, .layers = 1}};
  LaneTimes lanes = steps().decode({.context = 20, .host = 12}, 0);
  EXPECT_NEAR(lanes.compute, 10 + 2 + 2.0 * (20 + 10) / 2 / 2, kClose);
  EXPECT_NEAR(lanes.h2d, 2 * (1 + 2 * (12 + 4) * 16 / 2.0 / 1000), kClose);
  lanes = steps().decode({.context = 20, .host = 12, .recompute = 6}, 12);
  EXPECT_NEAR(lanes.recompute, 3 * 2 + 2 * 6 / 2.0, kClose);
  EXPECT_NEAR(lanes.h2d, 2 * (1 + 2 * ((6 + 4) * 16 + 6 * 8) / 2.0 / 1000), kClose);
  // A method chooses in the other layer: 10 tokens, of which 4 are on the host.
  workload_.caching_ratio = 0.5;
  lanes = steps().decode({.context = 20, .host = 12}, 0);
  EXPECT_NEAR(lanes.compute, 10 + 2 + 2.0 * (10 + 10) / 2 / 2, kClose);
  EXPECT_NEAR(lanes.h2d, (0.5 + 2 * 4 * 16 / 1000.0) + 2 * (1 + 2 * 4 * 16 / 2.0 / 1000), kClose);
  // A window beyond the context hides nothing.
  workload_.caching_ratio = 1.0;
  model_.costs.sliding = {{.window = 20, .layers = 1}};
  EXPECT_NEAR(steps().decode({.context = 20, .host = 12}, 0).h2d,
              2 * (1 + 2 * 12 * 32 / 2.0 / 1000), kClose);
  EXPECT_NEAR(attended_before(model_.costs, 8, 100), 50 + (20 - 4) / 2.0, kClose);
}

// With requests of 80 tokens it keeps, on the device, at most 5 blocks of each, and 2 for prompts.
TEST_F(HandComputedStep, ALayerWithAWindowMayReadNothingOnTheHost) {
  workload_.output_len = 70;
  model_.costs.sliding = {{.window = 10, .layers = 1}};
  LaneTimes lanes = steps().decode({.context = 20, .host = 12}, 0);
  EXPECT_NEAR(lanes.compute, 10 + 2 + 2.0 * (20 + 10) / 2 / 2, kClose);
  EXPECT_NEAR(lanes.h2d, 2 * (1 + 2 * 12 * 16 / 2.0 / 1000), kClose);
  lanes = steps().decode({.context = 20, .host = 12, .recompute = 6, .newly_offloaded = 4}, 12);
  EXPECT_NEAR(lanes.recompute, 3 * 2 + 2 * 3, kClose) << "6 tokens in one of two layers";
  EXPECT_NEAR(lanes.h2d, 2 * (1 + 2 * 6 * (16 + 8) / 2.0 / 1000), kClose);
  EXPECT_NEAR(lanes.d2h, 2 * (2 + 2 * 4 * 16 / 2.0 / 500), kClose);
  workload_.caching_ratio = 0.5;
  EXPECT_NEAR(steps().decode({.context = 20, .host = 12}, 0).h2d, 0.5 + 2 * 4 * 16 / 1000.0,
              kClose);
  workload_.caching_ratio = 1.0;
  const StepTokens tokens{.context = 21, .host = 8, .recompute = 4};
  // A block: 4 tokens x 16 bytes.
  EXPECT_EQ(steps().host_bytes(tokens, 8), 2U * (1 * 64 + 2 * 4 * 8));
  EXPECT_EQ(steps().device_bytes({.context = 40, .host = 8}, 0) -
                steps().device_bytes({.context = 12, .host = 0}, 0),
            2U * ((8 + 5) - (3 + 3)) * 64);
}

// Of 20 tokens a step attends the last 10, of which 2 are on the host; with half of the layers
// dense (0.5 + 0.5 * 0.5) these read all 12.
TEST_F(HandComputedStep, RecentTokensAndDenseLayersAreReadOnTheHost) {
  workload_.caching_ratio = 0.5;
  model_.recent_share = 1.0;
  const auto gathered = [](double tokens) { return 0.5 + 2 * tokens * 32 / 1000.0; };
  const double base = steps().decode({.context = 20, .host = 8}, 0).h2d;
  EXPECT_NEAR(steps().decode({.context = 20, .host = 12}, 0).h2d - base, gathered(2), kClose);
  workload_.caching_ratio = 0.75;
  model_.dense_layers = 0.5;
  EXPECT_NEAR(steps().decode({.context = 20, .host = 12}, 0).h2d - base, gathered(6 + 1), kClose);
}

// Both sequences choose from all of their 20 tokens, wherever these are, and attend 10.
TEST_F(HandComputedStep, ChoosingIsChargedForTheWholeContext) {
  cost_ = CostModel(plane_profile(), plane_method());
  workload_.caching_ratio = 0.5;
  const double choosing = 3 + 2 / 4.0 + 40 / 8.0;
  EXPECT_NEAR(steps().decode({.context = 20}, 0).compute, 10 + 2 + 20 / 2.0 + choosing, kClose);
  EXPECT_NEAR(steps().decode({.context = 20, .host = 12}, 0).compute, 10 + 2 + 20 / 2.0 + choosing,
              kClose);
  model_.kv_dtype = DType::kInt8;
  EXPECT_NEAR(steps().decode({.context = 20}, 0).compute,
              5 + 2 + 20 / 4.0 + 1 + 2 / 10.0 + (2 + 2 / 4.0 + 40 / 16.0), kClose);
  model_.kv_dtype = DType::kF16;
  workload_.caching_ratio = 1.0;
  EXPECT_NEAR(steps().decode({.context = 20}, 0).compute, 10 + 2 + 40 / 2.0, kClose)
      << "nothing is chosen";
}

// 20 prompt rows in chunks of at most 8: three of 7.
TEST_F(HandComputedStep, PrefillGoesInChunks) {
  model_.streamed_layers = 1;
  const LaneTimes lanes = steps().prefill(4, 4);
  EXPECT_NEAR(lanes.compute, 3 * (12 + 14 + 7 * 5 / 1000.0), kClose);
  EXPECT_NEAR(lanes.h2d, 3 * 2 * (1 + 50 / 1000.0), kClose);
  EXPECT_NEAR(lanes.d2h, 3 * 2 * (2 + 2 * (4 * 32 + 4 * 16) / 3.0 / 2 / 500), kClose);
  EXPECT_NEAR(lanes.step, lanes.compute + lanes.h2d / 2, kClose);
  model_.prefill_chunk = 64;
  EXPECT_NEAR(steps().prefill(0, 0).compute, 12 + 2 * 20, kClose)
      << "whole prompts see only theirs";
  model_.prefill_chunk = 10;
  EXPECT_NEAR(steps().prefill(0, 0).compute, 2 * (12 + 2 * 10), kClose);
}

TEST_F(HandComputedStep, BytesAreThoseOfWholeBlocks) {
  const StepTokens tokens{.context = 21, .host = 8, .recompute = 4};
  // A block: 4 tokens x 32 bytes.
  EXPECT_EQ(steps().host_bytes(tokens, 8), 2U * (1 * 128 + 2 * 4 * 16));
  EXPECT_EQ(steps().device_bytes(tokens, 0) - steps().device_bytes({.context = 5, .host = 0}, 0),
            2U * 2 * 128)
      << "four blocks of each sequence, and two";
  model_.streamed_layers = 2;
  EXPECT_EQ(steps().host_bytes({.context = 4}, 0), 200U);
  EXPECT_EQ(steps().movable(20), 16) << "the newest block stays";
  EXPECT_EQ(steps().movable(21), 20);
  workload_.caching_ratio = 0.5;
  EXPECT_EQ(steps().movable(20), 12) << "a window of 5 stays";
  EXPECT_EQ(steps().movable(21), 12) << "a window of 6";
  EXPECT_EQ(steps().movable(1), 0);
}

// Room for 15 blocks of 128 bytes: staging takes 11 pages of 64, and of four blocks on the host two
// are cached. Tables take 40 bytes for each block on the host and 16 for a cached one. Then staging
// shrinks by a page, and one block is cached.
TEST_F(HandComputedStep, WhatLooksTokensUpTakesRoom) {
  budget_ = {.device_memory = 250 + 15 * 128, .host_memory = 4 * 128};
  workload_.caching_ratio = 0.5;
  model_.prefill_chunk = 4;
  const StepTokens tokens{.context = 12};
  EXPECT_EQ(steps().device_bytes(tokens, 0), 250U + 11 * 64 + 2 * 128 + 2 * 3 * 128);
  model_.block_lookup = 40;
  model_.cached_block_lookup = 16;
  EXPECT_EQ(steps().device_bytes(tokens, 0), 250U + 10 * 64 + 128 + (4 * 40 + 16) + 2 * 3 * 128);
  // Whole blocks need no table.
  model_.fetch = SparseFetch::kWholeBlocks;
  EXPECT_EQ(steps().device_bytes(tokens, 0), 250U + 11 * 64 + 2 * 3 * 128);
}

// Of a request's 8 blocks 4 find places on the host and 4 of the device's 7, where 2 are kept, and
// those of a prompt's chunk.
TEST_F(HandComputedStep, NothingFitsWhereARunWouldTakeNoRequest) {
  budget_ = {.device_memory = 250 + 15 * 128, .host_memory = 4 * 128};
  workload_.caching_ratio = 0.5;
  for (const std::int64_t chunk : {4, 8}) {
    model_.prefill_chunk = chunk;
    EXPECT_EQ(steps().fits({.context = 12}, 0), chunk == 4) << chunk;
    EXPECT_EQ(steps().least_streamed().has_value(), chunk == 4) << chunk;
  }
}

TEST_F(HandComputedStep, FitsToTheLastBlock) {
  // 250 bytes of weights; both sequences at their longest need 8 blocks of 128 each.
  budget_ = {.device_memory = 250 + 16 * 128, .host_memory = 0};
  EXPECT_TRUE(steps().fits({.context = 30}, 0));
  budget_.device_memory -= 1;
  EXPECT_FALSE(steps().fits({.context = 30}, 0));
  EXPECT_TRUE(steps().fits({.context = 28}, 0));
  EXPECT_FALSE(steps().fits({.context = 28, .host = 4}, 0)) << "there is no host";
  budget_ = {.device_memory = 250 + 15 * 128, .host_memory = 4 * 128};
  EXPECT_TRUE(steps().fits({.context = 20, .host = 8}, 0));
  EXPECT_FALSE(steps().fits({.context = 20, .host = 12}, 0)) << "the host holds two blocks of each";
  EXPECT_TRUE(steps().fits({.context = 20, .host = 12, .recompute = 4}, 0));
  budget_.device_memory = 200;
  EXPECT_FALSE(steps().fits({.context = 1}, 0)) << "the weights alone do not";
}

}  // namespace
}  // namespace triphase
