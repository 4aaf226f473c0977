#include "scheduler/simulator/job_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "models/config/model_config.h"
#include "runtime/plan/config_costs.h"

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
  [[nodiscard]] std::int64_t longest_line(const PlacementLimits& /*limits*/) const override {
    return longest;
  }
  [[nodiscard]] std::int64_t input_blocks(std::int64_t /*block_tokens*/) const override {
    return saved_blocks;
  }
  [[nodiscard]] PlacementActions decide(const StepView& /*view*/) const override { return {}; }
};

SimulatedJob job() {
  const ModelCosts model = model_costs(builtin_shape("opt-125m").value(), DType::kF16);
  return {.model = model,
          .device_memory = model.weights() + 600 * kMega,
          .host_memory = 400 * kMega,
          .batch_size = 4,
          .prefill_chunk = 64,
          .lines = {{100, 29}, {40, 10}}};
}

std::uint64_t scratch(const SimulatedJob& job) {
  return scratch_bytes(job.model, job.prefill_chunk + job.batch_size, job.batch_size,
                       job.weights_dtype);
}

// Bytes that KV takes of either tier.
double device_kv(const JobMemory& memory) {
  return static_cast<double>(memory.limits.device_blocks() * memory.limits.block_tokens) *
         memory.kv_token;
}

TEST(JobMemory, GivesKvAllThatWeightsAndScratchLeave) {
  const SimulatedJob given = job();
  FixedPolicy policy;
  const JobMemory memory = divide_memory(policy, given);
  ASSERT_EQ(memory.infeasible, "");
  EXPECT_EQ(memory.fixed_device, given.model.weights() + scratch(given));
  EXPECT_EQ(memory.fixed_host, 0u);
  EXPECT_EQ(memory.limits.host_pages, 0) << "no host tier";
  const double room = static_cast<double>(given.device_memory - memory.fixed_device);
  EXPECT_LE(device_kv(memory), room);
  EXPECT_GT(device_kv(memory) + 32 * memory.kv_token, room) << "not a block less than fits";
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

TEST(JobMemory, StreamedLayersLeaveTwoSlots) {
  const SimulatedJob given = job();
  for (const std::int64_t streamed : {1, 2, 7, 12}) {
    FixedPolicy policy;
    policy.placement.streamed_layers = streamed;
    const JobMemory memory = divide_memory(policy, given);
    const std::int64_t here = 12 - streamed + std::min<std::int64_t>(streamed, 2);
    EXPECT_EQ(memory.fixed_device, given.model.other_weights + scratch(given) +
                                       given.model.layer_weights * static_cast<std::uint64_t>(here))
        << streamed;
    EXPECT_EQ(memory.fixed_host, given.model.layer_weights * static_cast<std::uint64_t>(streamed));
  }
}

TEST(JobMemory, TheHostGetsAtMostAFullBatchOfLongestLines) {
  SimulatedJob given = job();
  FixedPolicy policy;
  policy.placement.host_tier = true;
  EXPECT_EQ(divide_memory(policy, given).limits.host_blocks(), 4 * 4)
      << "four lines of 128 tokens in blocks of 32";
  given.host_memory = 4 * kMega;  // three blocks of 32 tokens of 36,864 bytes
  const JobMemory little = divide_memory(policy, given);
  EXPECT_EQ(little.limits.host_blocks(), 3);
  EXPECT_EQ(little.infeasible, "");
}

TEST(JobMemory, StagesTwoLayersOfWhatTheHostIsReadFor) {
  SimulatedJob given = job();
  FixedPolicy policy;
  policy.placement.host_tier = true;
  const JobMemory whole = divide_memory(policy, given);
  EXPECT_EQ(whole.limits.staging_tokens, 4 * 128);
  EXPECT_EQ(whole.fixed_device,
            given.model.weights() + scratch(given) + 2u * 4 * 128 * 2 * 768 * 2);
  policy.placement.gpu_batch = 1;
  EXPECT_EQ(divide_memory(policy, given).limits.staging_tokens, 128) << "one line at a time";
  given.caching_ratio = 0.25;
  EXPECT_EQ(divide_memory(policy, given).limits.staging_tokens, 100 + 100)
      << "the chosen 32 tokens are fewer than the dense prompt, whose own places are extra";
  policy.placement.host_kv = HostKvUse::kCpuAttention;
  const JobMemory attended = divide_memory(policy, given);
  EXPECT_EQ(attended.limits.staging_tokens, 0) << "attended where it lies";
  EXPECT_EQ(attended.fixed_device, given.model.weights() + scratch(given));
}

TEST(JobMemory, SavedInputsTakeAtMostHalfOfTheHost) {
  SimulatedJob given = job();
  FixedPolicy policy;
  policy.placement.host_tier = true;
  policy.saved_blocks = 3;
  EXPECT_EQ(divide_memory(policy, given).limits.input_blocks(), 3 * 4);
  given.host_memory = 3 * kMega;
  const JobMemory little = divide_memory(policy, given);
  const double inputs = static_cast<double>(little.limits.input_blocks() * 32) * little.input_token;
  EXPECT_LT(little.limits.input_blocks(), 3 * 4);
  EXPECT_LE(inputs, 1.5e6);
  EXPECT_GT(inputs + 32 * little.input_token, 1.5e6);
  EXPECT_LE(inputs + static_cast<double>(little.limits.host_blocks() * 32) * little.record_token,
            3e6);
}

TEST(JobMemory, ScalesOfInt8StayOnTheDevice) {
  SimulatedJob given = job();
  FixedPolicy policy;
  policy.placement.host_tier = true;
  policy.placement.kv_dtype = DType::kInt8;
  policy.placement.block_tokens = 64;
  const JobMemory memory = divide_memory(policy, given);
  EXPECT_EQ(memory.kv_dtype, DType::kInt8);
  EXPECT_EQ(memory.limits.block_tokens, 64);
  EXPECT_EQ(memory.record_token, 2.0 * 768 * 12) << "a byte of each channel crosses the link";
  const double scales = (memory.kv_token - memory.record_token) * 64;
  EXPECT_EQ(scales, 2.0 * 768 * 12 * 4) << "scale and zero point of each channel";
  const double room = static_cast<double>(given.device_memory - memory.fixed_device);
  EXPECT_LE(device_kv(memory) + static_cast<double>(memory.limits.host_blocks()) * scales, room);
  // With room for few scales the host holds few blocks, whatever it could.
  given.device_memory = memory.fixed_device + static_cast<std::uint64_t>(scales) * 6;
  EXPECT_EQ(divide_memory(policy, given).limits.host_blocks(), 3) << "half of the room";
}

TEST(JobMemory, SaysWhyItDoesNotFit) {
  SimulatedJob given = job();
  FixedPolicy policy;
  policy.longest = 127;
  EXPECT_EQ(divide_memory(policy, given).infeasible,
            "a line of 128 tokens; --policy fixed can hold 127");
  given.device_memory = given.model.weights();
  EXPECT_THAT(divide_memory(policy, given).infeasible,
              ::testing::StartsWith("weights, scratch and staging take "));
  policy.refuses = true;
  EXPECT_EQ(divide_memory(policy, given).infeasible, "too little for it");
}

TEST(JobMemory, TakesAGivenDivisionAtItsWord) {
  SimulatedJob given = job();
  given.device_memory = given.host_memory = 0;  // not looked at
  given.kv_dtype = DType::kInt8;
  const PlacementLimits limits{.layers = 12, .block_tokens = 16, .device_pages = 240};
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

}  // namespace
}  // namespace triphase
