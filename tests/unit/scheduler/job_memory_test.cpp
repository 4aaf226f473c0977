#include "scheduler/simulator/job_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "models/config/model_config.h"
#include "runtime/plan/config_costs.h"
#include "scheduler/memory_plan.h"

namespace triphase {
namespace {

constexpr std::uint64_t kMega = 1'000'000;

// Answers start() with what it is given, and remembers what it was asked.
class FixedPolicy : public PlacementPolicy {
 public:
  StaticPlacement placement;
  std::int64_t longest = 1 << 20;
  std::int64_t saved_blocks = 0;
  bool refuses = false;
  mutable JobView asked;
  mutable int times_asked = 0;

  [[nodiscard]] std::string_view name() const override { return "fixed"; }
  [[nodiscard]] StaticPlacement start(const JobView& job) const override {
    asked = job;
    ++times_asked;
    if (refuses) {
      throw Error(ErrorRole::kResources, "E-MEM-FIT", "--policy").found("too little for it");
    }
    return placement;
  }
  [[nodiscard]] std::int64_t longest_request(const PlacementLimits& /*limits*/) const override {
    return longest;
  }
  [[nodiscard]] std::int64_t input_blocks(std::int64_t /*block_tokens*/) const override {
    return saved_blocks;
  }
  void decide(PlacementStep& /*step*/) const override {}
};

SimulatedJob job() {
  const ModelCosts model = model_costs(builtin_shape("opt-125m").value(), DType::kF16);
  return {.model = model,
          .device_memory = model.weights() + 600 * kMega,
          .host_memory = 400 * kMega,
          .batch_size = 4,
          .prefill_chunk = 64,
          .requests = {{100, 29}, {40, 10}}};
}

std::uint64_t scratch(const SimulatedJob& job) {
  return scratch_bytes(job.model, job.prefill_chunk + job.batch_size, job.batch_size,
                       job.weights_dtype);
}

// Bytes that KV takes of either tier.
double device_kv(const JobMemory& memory) {
  return static_cast<double>(memory.limits.device_blocks * memory.limits.block_tokens) *
         memory.kv_token;
}

TEST(JobMemory, GivesKvAllThatWeightsAndScratchLeave) {
  const SimulatedJob given = job();
  FixedPolicy policy;
  const JobMemory memory = divide_memory(policy, given);
  ASSERT_EQ(memory.infeasible, "");
  EXPECT_EQ(memory.fixed_device, given.model.weights() + scratch(given));
  EXPECT_EQ(memory.fixed_host, 0u);
  EXPECT_EQ(memory.limits.host_blocks, 0) << "no host tier";
  const double room = static_cast<double>(given.device_memory - memory.fixed_device);
  EXPECT_LE(device_kv(memory), room);
  EXPECT_EQ(memory.limits.device_blocks, 4 * 4) << "four lines of 128 tokens in blocks of 32";
  // K and V of 768 channels, FP16, in 12 layers; a query of as many in as many.
  EXPECT_EQ(memory.kv_token, 2.0 * 768 * 2 * 12);
  EXPECT_EQ(memory.record_token, memory.kv_token);
  EXPECT_EQ(memory.query_row, 768.0 * 2 * 12);
}

TEST(JobMemory, TellsThePolicyTheLongestContext) {
  FixedPolicy policy;
  const SimulatedJob given = job();
  (void)divide_memory(policy, given);
  EXPECT_EQ(policy.asked.longest_tokens, 128) << "a line's last token is never attended";
  EXPECT_EQ(policy.asked.scratch, scratch(given));
  EXPECT_EQ(policy.asked.kv_bytes_per_token, 2u * 768 * 2 * 12);
}

// What plan_memory() gives a run with these sizes is what a simulated job has.
TEST(JobMemory, DividesAsARunDoes) {
  SimulatedJob given = job();
  given.device_memory = given.model.weights() + 20 * kMega;
  FixedPolicy policy;
  policy.placement.host_tier = true;
  policy.placement.kv_dtype = DType::kInt8;
  policy.placement.block_tokens = 64;
  policy.saved_blocks = 1;
  const JobMemory memory = divide_memory(policy, given);
  ASSERT_EQ(memory.infeasible, "");
  EXPECT_EQ(memory.kv_dtype, DType::kInt8);
  EXPECT_EQ(memory.record_token, 2.0 * 768 * 12) << "a byte of each channel crosses the link";
  MemoryRequest request{.budget = given.device_memory,
                        .kv_budget = {},
                        .weights = given.model.weights(),
                        .layer_weights = given.model.layer_weights,
                        .scratch = [&](std::int64_t) { return scratch(given); },
                        .page_bytes = 2 * 768 * 64,
                        .layers = 12,
                        .block_tokens = 64,
                        .context = 128,
                        .batch_size = 4,
                        .prefill_chunk = 64,
                        .scale_bytes = 2 * 768 * 4,
                        .partial_page_bytes = 2 * 768 * 64 * 2,
                        .partial_pages =
                            [](std::int64_t batch) {
                              return partial_pages_needed(DType::kInt8, 12, 64, batch, batch + 64);
                            },
                        .host = host_tier(policy, policy.placement, 64, 64)};
  request.host->budget = given.host_memory;
  request.host->input_bytes = 64 * (768 + 4);
  const MemoryPlan plan = plan_memory(request);
  EXPECT_GT(plan.host_blocks, 0);
  EXPECT_GT(plan.input_blocks, 0);
  EXPECT_EQ(memory.limits, placement_limits(request, plan));
  EXPECT_EQ(memory.staging_pages, plan.staging_pages);
  EXPECT_EQ(memory.fixed_host, plan.host_weights);
  const std::uint64_t scales = 12u * (2 * 768 * 4);
  const std::uint64_t kv =
      static_cast<std::uint64_t>(memory.limits.device_blocks) * (12u * 2 * 768 * 64 + scales) +
      static_cast<std::uint64_t>(plan.host_blocks + plan.input_blocks) * scales;
  EXPECT_EQ(memory.fixed_device + kv, plan.total());
}

TEST(JobMemory, WeightsThatDoNotFitAreStreamed) {
  SimulatedJob given = job();
  FixedPolicy policy;
  policy.placement.streamed_layers = 7;
  const JobMemory chosen = divide_memory(policy, given);
  EXPECT_EQ(chosen.streamed_layers, 7);
  EXPECT_EQ(chosen.fixed_device, given.model.other_weights + scratch(given) +
                                     given.model.layer_weights * (12 - 7 + kWeightSlots));
  EXPECT_EQ(chosen.fixed_host, given.model.layer_weights * 7);
  policy.placement.streamed_layers = 0;
  given.device_memory = given.model.weights();
  const JobMemory needed = divide_memory(policy, given);
  EXPECT_EQ(needed.infeasible, "");
  EXPECT_GT(needed.streamed_layers, 2);
  EXPECT_LE(device_kv(needed) + static_cast<double>(needed.fixed_device),
            static_cast<double>(given.device_memory));
}

TEST(JobMemory, SaysWhyItDoesNotFit) {
  SimulatedJob given = job();
  FixedPolicy policy;
  policy.longest = 127;
  EXPECT_EQ(divide_memory(policy, given).infeasible,
            "a request of 128 tokens; --policy fixed can hold 127");
  given.device_memory = given.model.other_weights;
  EXPECT_THAT(divide_memory(policy, given).infeasible,
              ::testing::AllOf(::testing::StartsWith("weights "),
                               ::testing::HasSubstr(", and the budget is ")));
  policy.refuses = true;
  EXPECT_EQ(divide_memory(policy, given).infeasible, "too little for it");
}

TEST(JobMemory, TakesAGivenDivisionAtItsWord) {
  SimulatedJob given = job();
  given.device_memory = given.host_memory = 0;  // not looked at
  given.kv_dtype = DType::kInt8;
  const PlacementLimits limits{.layers = 12, .block_tokens = 16, .device_blocks = 20};
  StaticPlacement chosen;
  chosen.kv_dtype = DType::kF16;  // what the job says counts: the division was made for it
  given.division = MemoryDivision{limits, 5, chosen};
  FixedPolicy policy;
  const JobMemory memory = divide_memory(policy, given);
  EXPECT_EQ(memory.infeasible, "");
  EXPECT_EQ(policy.times_asked, 0);
  EXPECT_EQ(memory.limits, limits);
  EXPECT_EQ(memory.streamed_layers, 5);
  EXPECT_EQ(memory.kv_dtype, DType::kInt8);
  EXPECT_EQ(memory.fixed_device, 0u);
  given.division->placement.reset();
  (void)divide_memory(policy, given);
  EXPECT_EQ(policy.times_asked, 1) << "for how it moves KV";
}

// Six of twelve layers have a window of 64 tokens: a window block of each block, and four set aside
// for a request of 400 tokens. Of layers apart a block has half of the bytes.
TEST(JobMemory, KeepsWindowsApartWhereThePolicyMay) {
  SimulatedJob given = job();
  given.model.sliding = {{.window = 64, .layers = 6}};
  given.requests = {{371, 30}};
  FixedPolicy policy;
  policy.placement.host_tier = true;
  const JobMemory together = divide_memory(policy, given);
  EXPECT_EQ(together.limits.windows, KvWindowShape{});
  EXPECT_EQ(together.block_layers, 12);
  policy.placement.windows_apart = true;
  const JobMemory apart = divide_memory(policy, given);
  ASSERT_EQ(apart.infeasible, "");
  EXPECT_EQ(apart.limits.windows, (KvWindowShape{.tokens = 64, .blocks = 1, .step_tokens = 64}));
  EXPECT_EQ(apart.block_layers, 6);
  for (const auto bytes :
       {&JobMemory::kv_token, &JobMemory::record_token, &JobMemory::input_token}) {
    EXPECT_EQ(2 * apart.*bytes, together.*bytes);
  }
  EXPECT_EQ(apart.record_layer, together.record_layer);
  EXPECT_EQ(apart.limits.device_blocks, 4 * (13 + 4) + 2);
  given.requests = {{100, 29}};
  EXPECT_EQ(divide_memory(policy, given).limits.windows, KvWindowShape{}) << "nothing is saved";
}

}  // namespace
}  // namespace triphase
