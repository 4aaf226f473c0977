#include "scheduler/memory_plan.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "scheduler/placement/accelerate_policy.h"
#include "scheduler/placement/device_only_policy.h"

namespace triphase {
namespace {

MemoryRequest request() {
  return {.budget = 10'000,
          .kv_budget = {},
          .weights = 4'000,
          .scratch = [](std::int64_t batch) { return 100 * static_cast<std::uint64_t>(batch); },
          .page_bytes = 50,
          .layers = 2,
          .block_tokens = 4,
          .context = 12,
          .batch_size = {}};
}

TEST(PlanMemory, GivesKvTheRestInWholeBlocks) {
  MemoryRequest wanted = request();
  wanted.batch_size = 10;
  const MemoryPlan plan = plan_memory(wanted);
  EXPECT_EQ(plan.scratch, 1'000u);
  EXPECT_EQ(plan.kv_pages, 30 * 2) << "ten sequences of three blocks are less than the rest";
  EXPECT_EQ(plan.kv, 3'000u);
  EXPECT_EQ(plan.kv_tokens_per_sequence, 12);
  wanted.budget = 5'750;
  EXPECT_EQ(plan_memory(wanted).kv_pages, 7 * 2);
  EXPECT_LE(plan_memory(wanted).total(), wanted.budget);
}

TEST(PlanMemory, StreamedLayersFreeTheirOwnBytesAndArriveAsTheLargest) {
  MemoryRequest wanted = request();
  wanted.layer_weights = 1'500;
  wanted.streamed_layers = 1;
  EXPECT_EQ(plan_memory(wanted).weights, 4'000u - 1'500u + kWeightSlots * 1'500u);
  EXPECT_EQ(plan_memory(wanted).host_weights, 1'500u);
  wanted.streamed_weights = [](std::int64_t layers) {
    return 600 * static_cast<std::uint64_t>(layers);
  };
  EXPECT_EQ(plan_memory(wanted).weights, 4'000u - 600u + kWeightSlots * 1'500u);
  EXPECT_EQ(plan_memory(wanted).host_weights, 600u);
}

// Bytes that the refusal of `wanted` hints at, as a value of `option`.
std::uint64_t hinted_bytes(const MemoryRequest& wanted, const std::string& option) {
  try {
    (void)plan_memory(wanted);
    ADD_FAILURE() << "it fits";
  } catch (const Error& error) {
    if (error.hint().starts_with(option + " ")) {
      return std::stoull(error.hint().substr(option.size() + 1));
    }
    ADD_FAILURE() << error.hint();
  }
  return 0;
}

TEST(PlanMemory, AHintedBudgetIsEnough) {
  MemoryRequest wanted = request();
  wanted.budget = 3'000;
  wanted.batch_size = 1;
  wanted.context = 400;
  wanted.scale_bytes = 20;
  wanted.host = MemoryRequest::Host{.budget = 1'000'000, .always = true};
  wanted.host->step_homes = 3;
  wanted.budget = hinted_bytes(wanted, "--device-memory");
  ASSERT_NO_THROW((void)plan_memory(wanted)) << wanted.budget;
  EXPECT_GE(plan_memory(wanted).staging_pages, 400 / 4) << "the longest request's blocks";
}

// Eight layers, of which each that is streamed makes room for more than two blocks.
MemoryRequest layered_request(const PlacementPolicy& policy) {
  MemoryRequest wanted = request();
  wanted.budget = 4'900;
  wanted.layers = 8;
  wanted.layer_weights = 450;
  wanted.page_bytes = 25;
  wanted.context = 100;
  wanted.batch_size = 1;
  wanted.policy = &policy;
  wanted.prefill_chunk = 8;
  return wanted;
}

TEST(PlanMemory, StreamsLayersUntilTheRequestFitsThatMust) {
  const DeviceOnlyPolicy policy;
  MemoryRequest wanted = layered_request(policy);
  const auto plan = [&] { return plan_memory(wanted); };
  EXPECT_EQ(plan().streamed_layers, 0);
  EXPECT_EQ(plan().kv_tokens_per_sequence, 16);
  wanted.held = 16;
  EXPECT_EQ(plan().streamed_layers, 0);
  wanted.held = 24;
  EXPECT_EQ(plan().streamed_layers, 3) << "two slots for streamed layers take the room of two";
  EXPECT_EQ(plan().kv_tokens_per_sequence, 24);
  wanted.held = 100;
  EXPECT_EQ(plan().streamed_layers, 8) << "what holds most";
  EXPECT_EQ(plan().kv_tokens_per_sequence, 68);
  wanted.most_streamed = 4 * 450;
  EXPECT_EQ(plan().streamed_layers, 4);
  wanted.most_streamed = 2 * 450;
  EXPECT_EQ(plan().streamed_layers, 0);
  wanted.streamed_layers = 2;  // as the policy says
  wanted.most_streamed = UINT64_MAX;
  EXPECT_EQ(plan().streamed_layers, 2);
}

// n streamed layers leave 450n - 200 bytes beside weights and scratch; a block has 200.
TEST(PlanMemory, StreamsLayersUntilTheDeviceHoldsAWholeBatch) {
  const DeviceOnlyPolicy policy;
  MemoryRequest wanted = layered_request(policy);
  wanted.batch_size = 2;
  const auto plan = [&] { return plan_memory(wanted); };
  EXPECT_EQ(plan().streamed_layers, 3) << "four blocks";
  wanted.held = 24;
  EXPECT_EQ(plan().streamed_layers, 4) << "one request of six";
  wanted.held_together = true;
  EXPECT_EQ(plan().streamed_layers, 6);
  EXPECT_TRUE(holds_together(placement_limits(wanted, plan()), 24));
  wanted.policy = nullptr;
  EXPECT_EQ(plan().streamed_layers, 6);
  wanted.held = 100;
  EXPECT_EQ(plan().streamed_layers, 3) << "no number of them is enough";
  EXPECT_FALSE(holds_together(placement_limits(wanted, plan()), 100));
  wanted.context = wanted.held = 4;
  wanted.held_together = false;
  EXPECT_EQ(plan().streamed_layers, 0) << "room for three blocks, of which a batch needs two";
}

TEST(PlanMemory, ADivisionWithoutRoomForAnyRequestDoesNotFit) {
  const AcceleratePolicy policy;
  MemoryRequest wanted = layered_request(policy);
  wanted.host = MemoryRequest::Host{.budget = 1'000'000, .holds_everything = true};
  const MemoryPlan plan = plan_memory(wanted);
  EXPECT_EQ(plan.streamed_layers, 5) << "four blocks beside the staging pages";
  EXPECT_EQ(longest_request(policy, wanted, plan), 100);
  wanted.policy = nullptr;
  EXPECT_EQ(plan_memory(wanted).streamed_layers, 0);
  wanted.policy = &policy;
  wanted.budget = 3'400;
  wanted.budget = hinted_bytes(wanted, "--device-memory");
  EXPECT_LE(wanted.budget, 3'450u + 3'450 / 32);
  EXPECT_NO_THROW((void)plan_memory(wanted));
  // Fewer requests at a time need less staging.
  wanted.budget = 4'900;
  wanted.batch_size = 8;
  wanted.streamed_layers = 5;
  EXPECT_THROW((void)plan_memory(wanted), Error);
  wanted.batch_size.reset();
  EXPECT_LT(plan_memory(wanted).batch_size, 8);
}

TEST(PlanMemory, ShrinksTheDefaultBatchBeforeItRefuses) {
  MemoryRequest wanted = request();
  wanted.budget = 4'950;
  const MemoryPlan plan = plan_memory(wanted);
  EXPECT_EQ(plan.batch_size, 8);
  EXPECT_EQ(plan.kv_pages, 2);
  EXPECT_EQ(plan.kv_tokens_per_sequence, 4) << "only one block fits";
}

TEST(PlanMemory, RefusesWithWhatWouldFit) {
  MemoryRequest wanted = request();
  wanted.budget = 4'450;
  wanted.batch_size = 16;
  try {
    (void)plan_memory(wanted);
    FAIL() << "does not fit";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "E-MEM-FIT");
    EXPECT_EQ(error.role(), ErrorRole::kResources);
    EXPECT_EQ(error.hint(), "--batch-size 2 fits");
  }
  wanted.budget = 4'150;
  wanted.budget = hinted_bytes(wanted, "--device-memory");
  EXPECT_LE(wanted.budget, 4'400u + 4'400 / 32) << "weights, scratch and three blocks";
  wanted.batch_size = 1;
  EXPECT_EQ(plan_memory(wanted).kv_tokens_per_sequence, 12);
}

TEST(PlanMemory, KvBudgetHolds) {
  MemoryRequest wanted = request();
  wanted.kv_budget = 250;
  EXPECT_EQ(plan_memory(wanted).kv, 200u);
  wanted.kv_budget = 99;
  EXPECT_THROW((void)plan_memory(wanted), Error);
}

TEST(PlanMemory, AHintedKvBudgetIsEnough) {
  MemoryRequest wanted = request();
  wanted.batch_size = 10;
  wanted.scale_bytes = 10;
  wanted.partial_page_bytes = 7;
  wanted.partial_pages = [](std::int64_t batch) { return 3 * batch; };
  wanted.kv_budget = 130;  // a block, and not the partial ones
  wanted.kv_budget = hinted_bytes(wanted, "--device-kv-memory");
  EXPECT_LE(*wanted.kv_budget, 2 * 60 + 30 * 7);
  EXPECT_NO_THROW((void)plan_memory(wanted)) << *wanted.kv_budget;
}

// More layers than the fewest make room, and a device with more memory would not.
TEST(PlanMemory, AHintedKvBudgetGoesWithAsManyStreamedLayersAsItTakes) {
  const AcceleratePolicy policy;
  MemoryRequest wanted = layered_request(policy);
  wanted.host = MemoryRequest::Host{.budget = 1'000'000, .holds_everything = true};
  wanted.kv_budget = 150;
  wanted.kv_budget = hinted_bytes(wanted, "--device-kv-memory");
  EXPECT_GT(*wanted.kv_budget, 150u);
  EXPECT_NO_THROW((void)plan_memory(wanted)) << *wanted.kv_budget;
  // A smaller batch than the default one, where that has no room for staging.
  wanted.batch_size.reset();
  wanted.streamed_layers = 5;
  EXPECT_LT(plan_memory(wanted).batch_size, 8);
  wanted.kv_budget = 250;
  wanted.kv_budget = hinted_bytes(wanted, "--device-kv-memory");
  EXPECT_NO_THROW((void)plan_memory(wanted)) << *wanted.kv_budget;
}

TEST(PlanMemory, TheHostTakesWhatTheDeviceCannotHold) {
  MemoryRequest wanted = request();
  wanted.batch_size = 10;
  wanted.host = MemoryRequest::Host{.budget = 100'000};
  EXPECT_EQ(plan_memory(wanted).host_blocks, 0) << "everything fits on the device";
  wanted.budget = 6'500;
  const MemoryPlan plan = plan_memory(wanted);
  EXPECT_EQ(plan.host_blocks, 30);
  EXPECT_EQ(plan.host_kv, 3'000u);
  EXPECT_EQ(plan.staging_pages, 6 + 1'500 / 16 / 50)
      << "two sequences of three blocks in one layer, and a sixteenth for what comes early";
  EXPECT_EQ(plan.kv_pages, (6'500 - 5'000 - 7 * 50) / 100 * 2);
  EXPECT_LE(plan.total(), wanted.budget);
  wanted.host->budget = 250;
  EXPECT_EQ(plan_memory(wanted).host_blocks, 2);
  wanted.host->always = true;
  wanted.budget = 10'000;
  EXPECT_EQ(plan_memory(wanted).host_blocks, 2);
}

// Where the requests are shorter than the model takes, the device alone holds a batch of them, and
// what they leave is still the KV's.
TEST(PlanMemory, TheHostIsForTheRequestsAndTheRestForKv) {
  MemoryRequest wanted = request();
  wanted.batch_size = 10;
  wanted.budget = 6'500;  // 15 blocks beside weights and scratch
  wanted.host = MemoryRequest::Host{.budget = 100'000};
  ASSERT_EQ(plan_memory(wanted).host_blocks, 30);
  wanted.most_context = wanted.context;
  wanted.context = 4;
  const MemoryPlan plan = plan_memory(wanted);
  EXPECT_EQ(plan.host_blocks, 0);
  EXPECT_EQ(plan.staging_pages, 0);
  EXPECT_EQ(plan.kv_pages, 15 * 2);
  EXPECT_EQ(plan.kv_tokens_per_sequence, 4);
  wanted.most_context = 0;
  EXPECT_EQ(plan_memory(wanted).kv_pages, 10 * 2);
}

TEST(PlanMemory, AHostWithoutRoomForABlockTakesNothing) {
  MemoryRequest wanted = request();
  wanted.batch_size = 10;
  wanted.budget = 6'500;
  const MemoryPlan alone = plan_memory(wanted);
  wanted.host = MemoryRequest::Host{.budget = 99, .chosen_share = 1.0};
  const MemoryPlan plan = plan_memory(wanted);
  EXPECT_EQ(plan.host_blocks, 0);
  EXPECT_EQ(plan.staging_pages, 0);
  EXPECT_EQ(plan.kv_pages, alone.kv_pages);
}

// The quarter that is being read, or a request's blocks, are not there for what comes ahead.
TEST(PlanMemory, StagesAheadWhatThePagesHold) {
  EXPECT_EQ(layers_staged_ahead(0, 10, 1, 2, 8), 0.0);
  EXPECT_EQ(layers_staged_ahead(100, 0, 0, 2, 8), 0.0) << "nothing to bring";
  EXPECT_DOUBLE_EQ(layers_staged_ahead(40, 18, 5, 2, 8), 30.0 / 20);
  EXPECT_DOUBLE_EQ(layers_staged_ahead(40, 18, 15, 2, 8), 25.0 / 20);
  EXPECT_DOUBLE_EQ(layers_staged_ahead(20, 38, 5, 2, 8), 15.0 / 40);
  EXPECT_DOUBLE_EQ(layers_staged_ahead(400, 8, 5, 2, 8), 7.0) << "all but the layer being read";
}

TEST(PlanMemory, HiddenStatesShareTheHostWithItsBlocks) {
  MemoryRequest wanted = request();
  wanted.batch_size = 10;
  wanted.budget = 6'500;
  wanted.host = MemoryRequest::Host{.budget = 100'000, .input_blocks = 2, .input_bytes = 30};
  MemoryPlan plan = plan_memory(wanted);
  EXPECT_EQ(plan.input_blocks, 20);
  EXPECT_EQ(plan.host_inputs, 1'200u);
  EXPECT_EQ(plan.host_blocks, 30);
  // Half of the host at most, and what is left for whole blocks.
  wanted.host->budget = 1'000;
  plan = plan_memory(wanted);
  EXPECT_EQ(plan.input_blocks, 8);
  EXPECT_EQ(plan.host_blocks, (1'000 - 8 * 60) / 100);
  EXPECT_LE(plan.host_kv + plan.host_inputs, wanted.host->budget);
}

TEST(PlanMemory, ChosenTokensGetACache) {
  MemoryRequest wanted = request();
  wanted.batch_size = 10;
  wanted.host = MemoryRequest::Host{.budget = 100'000};
  wanted.budget = 6'500;
  EXPECT_EQ(plan_memory(wanted).cache, 0u) << "whole blocks are read";
  const std::int64_t without = plan_memory(wanted).kv_pages;
  wanted.host->chosen_share = 1.0;
  MemoryPlan plan = plan_memory(wanted);
  // A quarter of 6500 - 5000 - 350, in blocks of 100 bytes.
  EXPECT_EQ(plan.cache, 200u);
  EXPECT_EQ(plan.cache_pages, 2 * 2);
  EXPECT_EQ(plan.kv_pages, without - plan.cache_pages);
  EXPECT_LE(plan.total(), wanted.budget);
  wanted.host->chosen_share = 0.05;
  EXPECT_EQ(plan_memory(wanted).cache, 200u) << "5 % of 30 blocks, rounded up";
  wanted.host->chosen_share = 1.0;
  wanted.host->token_cache = 0;
  EXPECT_EQ(plan_memory(wanted).cache, 0u);
  wanted.host->token_cache = 1'000'000;
  plan = plan_memory(wanted);
  EXPECT_EQ(plan.kv_pages, 2) << "a block must stay possible";
  EXPECT_LE(plan.total(), wanted.budget);
  wanted.host->request_homes = 2;
  wanted.host->step_homes = 1;
  plan = plan_memory(wanted);
  EXPECT_EQ(plan.kv_pages, 3 * 2) << "as many as a request on the host needs";
  EXPECT_LE(plan.total(), wanted.budget);
}

TEST(PlanMemory, LookingTokensUpIsPaidForHostBlocksAndCachedOnes) {
  MemoryRequest wanted = request();
  wanted.batch_size = 10;
  wanted.host = MemoryRequest::Host{.budget = 100'000, .chosen_share = 1.0};
  wanted.budget = 6'500;
  const MemoryPlan without = plan_memory(wanted);
  EXPECT_EQ(without.lookup, 0u);
  wanted.host->block_lookup = 5;
  wanted.host->cached_block_lookup = 20;
  MemoryPlan plan = plan_memory(wanted);
  EXPECT_EQ(plan.host_blocks, without.host_blocks);
  EXPECT_EQ(plan.lookup,
            static_cast<std::uint64_t>(plan.host_blocks * 5 + plan.cache_pages / 2 * 20));
  EXPECT_LT(plan.kv_pages + plan.staging_pages + plan.cache_pages,
            without.kv_pages + without.staging_pages + without.cache_pages);
  EXPECT_LE(plan.total(), wanted.budget);
  // What the user gives the cache is for tokens alone.
  wanted.host->token_cache = 300;
  plan = plan_memory(wanted);
  EXPECT_EQ(plan.cache, 300u);
  EXPECT_EQ(plan.lookup, static_cast<std::uint64_t>(plan.host_blocks * 5 + 3 * 20));
  EXPECT_LE(plan.total(), wanted.budget);
  // An eighth of the room at most finds tokens.
  wanted.host->block_lookup = 30;
  plan = plan_memory(wanted);
  EXPECT_EQ(plan.host_blocks, (6'500 - 5'000) / 8 / 30);
  EXPECT_LE(plan.total(), wanted.budget);
}

TEST(PlanMemory, TransposedKArePaidForBlocksAtHomeAndOnTheHost) {
  MemoryRequest wanted = request();
  wanted.batch_size = 10;
  wanted.transposed_k_bytes = 25;
  MemoryPlan plan = plan_memory(wanted);
  EXPECT_EQ(plan.kv_pages, 30 * 2);
  EXPECT_EQ(plan.kv, 3'000u);
  EXPECT_EQ(plan.transposed_k, 1'500u);
  EXPECT_EQ(plan.total(), 4'000u + 1'000 + 4'500);
  wanted.budget = 5'740;
  plan = plan_memory(wanted);
  EXPECT_EQ(plan.kv_pages, 740 / 150 * 2);
  EXPECT_LE(plan.total(), wanted.budget);
  wanted.budget = 6'500;
  wanted.host = MemoryRequest::Host{.budget = 100'000};
  plan = plan_memory(wanted);
  EXPECT_EQ(plan.host_kv, 3'000u) << "the host has no K^T";
  // Half of the room for K^T of 15 of the 30 blocks on the host, then staging without it.
  EXPECT_EQ(plan.staging, 750u / 3 / 50 * 50);
  EXPECT_EQ(plan.kv_pages, (750 - 250) / 150 * 2);
  EXPECT_EQ(plan.transposed_k_blocks, 15 + 3);
  EXPECT_EQ(plan.transposed_k, 18u * 50);
  EXPECT_LE(plan.total(), wanted.budget);
  // Where every line lies on the host, K^T leaves the homes that a step cannot do without.
  wanted.host->holds_everything = true;
  wanted.host->step_homes = 2;
  plan = plan_memory(wanted);
  EXPECT_EQ(plan.transposed_k_blocks, 6 + 2);
  EXPECT_EQ(plan.kv_pages, 2 * 2);
  EXPECT_LE(plan.total(), wanted.budget);
  wanted.host->request_homes = 1;
  EXPECT_EQ(plan_memory(wanted).transposed_k, plan_memory(wanted).kv_pages / 2 * 50U)
      << "none for blocks on the host";
  wanted.host.reset();
  wanted.kv_budget = 149;
  EXPECT_THROW((void)plan_memory(wanted), Error);
}

TEST(PlanMemory, Int8PaysForScalesAndOpenPages) {
  MemoryRequest wanted = request();
  wanted.batch_size = 10;
  wanted.scale_bytes = 10;
  wanted.partial_page_bytes = 7;
  wanted.partial_pages = [](std::int64_t batch) { return 3 * batch; };
  MemoryPlan plan = plan_memory(wanted);
  EXPECT_EQ(plan.partial_pages, 30);
  EXPECT_EQ(plan.kv, 30u * 2 * 60 + 30 * 7);
  wanted.host = MemoryRequest::Host{.budget = 100'000};
  wanted.budget = 6'500;
  plan = plan_memory(wanted);
  EXPECT_GT(plan.host_blocks, 0);
  EXPECT_LE(plan.total(), wanted.budget);
  EXPECT_LE(static_cast<std::uint64_t>(plan.host_blocks) * 20, (6'500u - 5'000 - 210) / 2);
}

// One of four layers attends everything, the others 9 tokens: three window blocks of each block. A
// sequence sets them aside for 4 blocks, prompts together for 2 more.
MemoryRequest apart() {
  MemoryRequest wanted = request();
  wanted.layers = 4;
  wanted.slab_pages = 1;
  wanted.windows = {.tokens = 9, .blocks = 3, .step_tokens = 8};
  wanted.context = 80;
  return wanted;
}

TEST(PlanMemory, WindowBlocksAreSetAsideForABatch) {
  MemoryRequest wanted = apart();
  wanted.batch_size = 2;
  MemoryPlan plan = plan_memory(wanted);
  EXPECT_EQ(plan.window_slabs, 3 * (2 * 4 + 2));
  EXPECT_EQ(plan.kv_pages, 2 * 20 + 30) << "two sequences of 20 blocks";
  EXPECT_EQ(plan.kv, 70u * 50);
  EXPECT_EQ(plan.kv_tokens_per_sequence, 80);
  EXPECT_EQ(placement_limits(wanted, plan).windows, wanted.windows);
  EXPECT_EQ(placement_limits(wanted, plan).batch_blocks(2, 80), 70);
  wanted.budget = 4'000 + 200 + 35 * 50;
  plan = plan_memory(wanted);
  EXPECT_EQ(plan.kv_pages, 35);
  EXPECT_EQ(plan.kv_tokens_per_sequence, (35 - 12 - 6) * 4) << "of one that runs alone";
  // K^T is for blocks alone.
  wanted = apart();
  wanted.batch_size = 2;
  wanted.transposed_k_bytes = 25;
  plan = plan_memory(wanted);
  EXPECT_EQ(plan.transposed_k_blocks, 40);
  EXPECT_EQ(plan.transposed_k, 1'000u);
}

TEST(PlanMemory, WindowBlocksStayOnTheDeviceAndLeaveRoomForStaging) {
  MemoryRequest wanted = apart();
  wanted.batch_size = 8;
  wanted.budget = 4'000 + 800 + 6'200;
  wanted.host = MemoryRequest::Host{.budget = 100'000};
  const MemoryPlan plan = plan_memory(wanted);
  EXPECT_EQ(plan.host_blocks, 160) << "of one layer";
  EXPECT_EQ(plan.host_kv, 160u * 50);
  // 124 pages: three times the 21 that one sequence reads at once, and 6 for prompts, leave 55.
  EXPECT_EQ(plan.window_slabs, 3 * (4 * 4 + 2)) << "four sequences of 12 window blocks";
  EXPECT_EQ(plan.staging_pages, (124 - 54) / 3 + (124 - 54) / 16);
  EXPECT_LE(plan.total(), wanted.budget);
}

TEST(PlanMemory, KeepsWindowsApartWhereThatSavesMemory) {
  MemoryRequest wanted = apart();
  wanted.batch_size = 2;
  EXPECT_TRUE(should_keep_windows_apart(wanted));
  EXPECT_FALSE(should_keep_windows_apart(request())) << "there are none";
  // 5 blocks and 3 x 4 window blocks of one page, not 5 of four.
  wanted.context = 20;
  EXPECT_TRUE(should_keep_windows_apart(wanted));
  wanted.context = 16;
  EXPECT_FALSE(should_keep_windows_apart(wanted));
  // What is kept for prompts can be too much.
  wanted.context = 80;
  wanted.windows.step_tokens = 500;
  wanted.budget = 4'000 + 200 + 350 * 50;
  EXPECT_FALSE(should_keep_windows_apart(wanted));
  // Or leave less for a sequence: 13 blocks beside its window blocks, of 20 that would fit.
  wanted.windows.step_tokens = 300;
  wanted.budget = 4'000 + 200 + 250 * 50;
  EXPECT_FALSE(should_keep_windows_apart(wanted));
  wanted.windows.step_tokens = 200;
  EXPECT_TRUE(should_keep_windows_apart(wanted));
  // 12 blocks of a sequence are more than 7.
  wanted.windows.step_tokens = 8;
  wanted.budget = 4'000 + 200 + 30 * 50;
  EXPECT_TRUE(should_keep_windows_apart(wanted));
  // Weights stay where they are.
  wanted = apart();
  wanted.batch_size = 1;
  wanted.layer_weights = 900;
  wanted.budget = 4'000 + 100 + 17 * 50;
  EXPECT_EQ(plan_memory(wanted).streamed_layers, 3) << "4 blocks, 12 for windows and 6 for prompts";
  EXPECT_FALSE(should_keep_windows_apart(wanted));
}

TEST(PlanMemory, SizedModelsDivideTheirLayersAsRunsDo) {
  ModelCosts model{.layers = 7,
                   .sliding = {{.window = 8, .layers = 4}, {.window = 16, .layers = 1}}};
  MemoryRequest wanted = request();
  wanted.layers = 7;
  wanted.context = 400;
  wanted.batch_size = 2;
  wanted.prefill_chunk = 9;
  const MemoryRequest apart = keep_windows_apart(wanted, model);
  EXPECT_EQ(apart.slab_pages, 2);
  EXPECT_EQ(apart.windows, (KvWindowShape{.tokens = 16, .blocks = 3, .step_tokens = 9}));
  const auto stay_together = [&] {
    const MemoryRequest same = keep_windows_apart(wanted, model);
    return same.slab_pages == 0 && same.windows == KvWindowShape{};
  };
  wanted.context = 20;
  EXPECT_TRUE(stay_together()) << "nothing is saved";
  wanted.context = 400;
  EXPECT_FALSE(stay_together());
  model.sliding[0].layers = 6;
  EXPECT_TRUE(stay_together()) << "all have a window";
  model.sliding.clear();
  EXPECT_TRUE(stay_together());
}

TEST(PlanMemoryProperty, PlansWithWindowsKeepTheirBudgets) {
  int planned = 0;
  int with_host = 0;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](std::int64_t low, std::int64_t high) {
      return std::uniform_int_distribution<std::int64_t>(low, high)(random);
    };
    MemoryRequest wanted = apart();
    wanted.layers = pick(2, 9);
    wanted.slab_pages = pick(1, wanted.layers - 1);
    wanted.windows = {.tokens = pick(1, 60),
                      .blocks = (wanted.layers - 1) / wanted.slab_pages,
                      .step_tokens = pick(1, 40)};
    wanted.context = pick(1, 300);
    wanted.budget = static_cast<std::uint64_t>(pick(4'000, 60'000));
    wanted.most_batch = pick(1, 20);
    if (pick(0, 1) == 0) wanted.batch_size = wanted.most_batch;
    if (pick(0, 2) == 0) wanted.transposed_k_bytes = 25;
    if (pick(0, 2) == 0) wanted.scale_bytes = 10;
    if (pick(0, 2) > 0) {
      wanted.host = MemoryRequest::Host{.budget = static_cast<std::uint64_t>(pick(0, 100'000)),
                                        .chosen_share = static_cast<double>(pick(0, 1)) * 0.3,
                                        .block_lookup = static_cast<std::uint64_t>(pick(0, 3)),
                                        .input_blocks = pick(0, 1) * pick(1, 5),
                                        .input_bytes = 20};
    }
    const std::optional<MemoryPlan> plan = try_plan_memory(wanted);
    if (!plan) continue;
    SCOPED_TRACE(seed);
    ++planned;
    with_host += plan->host_blocks > 0 ? 1 : 0;
    EXPECT_TRUE(plan->host_blocks == 0 || plan->staging_pages > 0);
    EXPECT_LE(plan->total(), wanted.budget);
    EXPECT_EQ(plan->kv_pages % wanted.slab_pages, 0);
    EXPECT_GE(plan->kv_tokens_per_sequence, 1);
    if (wanted.host) {
      EXPECT_LE(plan->host_kv + plan->host_inputs + plan->host_weights,
                std::max(wanted.host->budget, plan->host_weights));
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(planned, 1000);
  EXPECT_GT(with_host, 300);
}

}  // namespace
}  // namespace triphase
