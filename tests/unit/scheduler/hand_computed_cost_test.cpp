// Steps whose cost follows by hand from tables that are planes: numbers, not formulas of the code.

#include <gtest/gtest.h>

#include "scheduler/cost/model_costs.h"
#include "scheduler/cost/step_cost.h"
#include "tests/unit/scheduler/plane_profile.h"

namespace triphase {
namespace {

constexpr double kClose = 1e-9;

LaneTimes priced(const StepWork& work, const StepRules& rules = {.layers = 4}) {
  return CostModel(plane_profile()).step(work, rules);
}

TEST(HandComputedCost, DecodeGroupsReadTheWeightsEach) {
  EXPECT_NEAR(priced({.decode_rows = 8, .attended_tokens = 100}).compute, 10 + 8 + 50, kClose);
  EXPECT_NEAR(priced({.decode_rows = 8, .attended_tokens = 100, .decode_groups = 2}).compute,
              2 * (10 + 4 + 25), kClose);
  EXPECT_NEAR(priced({.decode_rows = 8, .attended_tokens = 100, .decode_groups = 20}).compute,
              8 * (10 + 1 + 6.25), kClose)
      << "a group has a row";
  EXPECT_NEAR(priced({.decode_rows = 8, .attended_tokens = 100, .int8_kv = true}).compute,
              5 + 8 + 25, kClose);
}

TEST(HandComputedCost, AMixedStepReadsTheWeightsOnce) {
  StepWork work{.prefill_rows = 10, .prefill_context = 100};
  EXPECT_NEAR(priced(work).compute, 12 + 20 + 1, kClose);
  work.decode_rows = 4;
  work.attended_tokens = 40;
  EXPECT_NEAR(priced(work).compute, (10 + 4 + 20) + (33 - 11), kClose);
  work.int8_kv = true;
  EXPECT_NEAR(priced(work).compute, (5 + 4 + 10) + (33 - 6), kClose);
  work.quantized_tokens = 20;
  EXPECT_NEAR(priced(work).compute, 19 + 27 + 3, kClose);
}

// Rows that choose from 400 tokens which 100 they attend.
TEST(HandComputedCost, ChoosingTokensIsPaidOnTop) {
  StepWork work{.decode_rows = 8, .attended_tokens = 100, .choosing_tokens = 400};
  const StepRules rules{.layers = 4};
  const auto compute = [&](const HardwareProfile& profile, const AttentionOptions& attention) {
    return CostModel(profile, attention).step(work, rules).compute;
  };
  HardwareProfile profile = plane_profile();
  const double dense = 10 + 8 + 50;
  EXPECT_NEAR(compute(profile, plane_method()), dense + (3 + 2 + 50), kClose);
  EXPECT_NEAR(compute(profile, {}), dense, kClose) << "nothing is known";
  AttentionOptions denser = plane_method();
  set_keep_ratio(denser, 0.6);
  EXPECT_NEAR(compute(profile, denser), dense, kClose) << "other options, other costs";
  work.int8_kv = true;
  EXPECT_NEAR(compute(profile, plane_method()), (5 + 8 + 25) + (2 + 2 + 25), kClose);
  profile.methods.front().choosing_int8 = {};
  EXPECT_NEAR(compute(profile, plane_method()), (5 + 8 + 25) + (3 + 2 + 50), kClose)
      << "not measured: as the others";
  work.int8_kv = false;
  work.decode_groups = 2;
  EXPECT_NEAR(compute(profile, plane_method()), 2 * (10 + 4 + 25) + (3 + 2 + 50), kClose);
  work.decode_groups = 1;
  work.prefill_rows = 10;
  EXPECT_NEAR(compute(profile, plane_method()), dense + 55 + (12 + 20 - 11), kClose);
  work.prefill_rows = 0;
  work.choosing_tokens = 0;
  EXPECT_NEAR(compute(profile, plane_method()), dense, kClose) << "dense rows";
  const CostModel model(profile, plane_method());
  EXPECT_FALSE(model.choosing(false, 8, 1e4).extrapolated);
  EXPECT_TRUE(model.choosing(false, 8, 1.1e4).extrapolated);
  work.choosing_tokens = 1.1e4;
  EXPECT_TRUE(model.step(work, rules).extrapolated);
}

TEST(HandComputedCost, WhatIsCopiedIsReadAndWritten) {
  EXPECT_NEAR(priced({.decode_rows = 4, .attended_tokens = 40, .copied_tokens = 30}).compute,
              34 + 2 * 15, kClose);
}

TEST(HandComputedCost, RecomputingAndAttentionOnTheHost) {
  const LaneTimes lanes = priced({.recompute_rows = 2, .recompute_tokens = 20});
  EXPECT_NEAR(lanes.recompute, 3 * 2 + 2 * 10, kClose);
  EXPECT_NEAR(lanes.step, 26, kClose);
  EXPECT_NEAR(priced({.host_attention_rows = 2, .host_attention_tokens = 50}).host, 2 + 25, kClose);
  EXPECT_NEAR(
      priced({.host_attention_rows = 2, .host_attention_tokens = 50, .host_attention_passes = 3})
          .host,
      2 + 3 * 25, kClose);
}

TEST(HandComputedCost, CopiesGoInPieces) {
  EXPECT_NEAR(priced({.h2d_bytes = 3000, .h2d_copies = 3}).h2d, 3 * (1 + 1), kClose);
  EXPECT_NEAR(priced({.h2d_bytes = 3000, .h2d_copies = 0}).h2d, 1 + 3, kClose);
  EXPECT_NEAR(priced({.h2d_copies = 3}).h2d, 0, kClose) << "nothing to copy";
  EXPECT_NEAR(priced({.d2h_bytes = 1000, .d2h_copies = 2}).d2h, 2 * (2 + 1), kClose);
  EXPECT_NEAR(
      priced({.gathered_records = 100, .record_bytes = 10, .gathered_inputs = 50, .input_bytes = 4})
          .h2d,
      (0.5 + 1) + (0.5 + 0.2), kClose);
}

// Four layers; compute 24, to the device 8, to the host 40.
TEST(HandComputedCost, ALaneStartsLateOrEndsLate) {
  StepWork work{.decode_rows = 4, .attended_tokens = 20, .h2d_bytes = 7000, .d2h_bytes = 19000};
  const LaneTimes lanes = priced(work);
  EXPECT_NEAR(lanes.compute, 24, kClose);
  EXPECT_NEAR(lanes.h2d, 8, kClose);
  EXPECT_NEAR(lanes.d2h, 40, kClose);
  EXPECT_NEAR(lanes.step, 40 + 2, kClose) << "the first layer's loads come before the first store";
  EXPECT_NEAR(priced(work, {.layers = 4, .sync_each_layer = true}).step, 42 + 10 + 2, kClose);
  EXPECT_NEAR(priced(work, {.layers = 4, .pinned = false}).step, 42 + 8, kClose);
  EXPECT_NEAR(priced(work, {.layers = 4, .overlap = false}).step, 24 + 8 + 40, kClose);
  EXPECT_NEAR(priced(work, {.layers = 4, .overlap = false, .pinned = false}).step, 72 + 8, kClose);
  work.d2h_bytes = 0;
  EXPECT_NEAR(priced(work).step, 24 + 2, kClose);
  work.h2d_bytes = 59000;
  EXPECT_NEAR(priced(work).step, 60 + 6, kClose) << "the last layer has nothing to load behind it";
  // A quarter of the loads was brought by the step before: as much as a layer.
  work.early_bytes = 59000;
  EXPECT_NEAR(priced(work, {.layers = 4, .early_layers = 0.2}).step, 60 + 3, kClose);
  EXPECT_NEAR(priced(work, {.layers = 4, .early_layers = 1}).step, 60, kClose);
}

TEST(HandComputedCost, WhatIsFetchedOnDemandIsWaitedFor) {
  StepWork work{
      .decode_rows = 4, .attended_tokens = 20, .gathered_records = 500, .record_bytes = 10};
  EXPECT_NEAR(priced(work).step, 24 + 5.5 / 4, kClose);
  work.fetch = SparseFetch::kOnDemand;
  EXPECT_NEAR(priced(work).step, 24 + 5.5, kClose);
  EXPECT_NEAR(priced(work, {.layers = 4, .overlap = false}).step, 24 + 5.5, kClose)
      << "waited for once";
}

TEST(GridTable, OneSampleIsProportionalWhereThatMeansSomething) {
  EXPECT_EQ(TimeCurve(GridTable{.x = {8}, .seconds = {0}}).at(12).seconds, 0.0);
  EXPECT_EQ(TimeCurve(GridTable{.x = {0}, .seconds = {2}}).at(12).seconds, 2.0);
}

TEST(GridTable, CellsAreLimited) {
  const auto table = [](std::size_t rows, std::size_t columns) {
    GridTable result;
    for (std::size_t i = 0; i < rows; ++i) result.x.push_back(static_cast<double>(i));
    for (std::size_t i = 0; i < columns; ++i) result.y.push_back(static_cast<double>(i));
    result.seconds.assign(rows * columns, 1.0);
    return result;
  };
  EXPECT_EQ(table_problem(table(4, kMaxTableCells / 4)), "");
  EXPECT_NE(table_problem(table(4, kMaxTableCells / 4 + 1)), "");
  EXPECT_NE(table_problem(table(kMaxTableCells + 1, 0)), "");
}

TEST(ModelCosts, ScratchIsRowsAndLogits) {
  const ModelCosts model{.hidden = 4, .ffn = 8, .q_width = 6, .kv_width = 2, .vocab = 10};
  EXPECT_EQ(scratch_bytes(model, 3, 2, DType::kF16), 3U * (12 + 12 + 4 + 16) * 2 + 2 * 10 * 4);
}

}  // namespace
}  // namespace triphase
