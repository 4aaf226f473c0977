// Invariant 1: placement never changes the answer. Every policy, budget and amount of streaming
// gives, bit for bit, what device-only gives.

#include <gtest/gtest.h>

#include "base/error.h"
#include "memory/host_device.h"
#include "scheduler/placement/accelerate_policy.h"
#include "scheduler/placement/flexgen_policy.h"
#include "scheduler/placement/triphase_policy.h"
#include "scheduler/placement/vllm_policy.h"
#include "scheduler/placement/zero_policy.h"
#include "tests/support/engine_runs.h"
#include "tests/support/tiny_model.h"

namespace triphase {
namespace {

const std::map<std::uint64_t, Completion>& expected_of(const std::vector<Request>& requests) {
  static const auto expected = [&] {
    TinyModel alone({.batch_size = 1, .prefill_chunk = 200, .block_tokens = 40, .kv_blocks = 8});
    return run_all(alone.engine(), requests);
  }();
  return expected;
}

// INT8 with blocks of 16 tokens, alone and in one chunk.
const std::map<std::uint64_t, Completion>& expected_int8(const std::vector<Request>& requests) {
  static const auto expected = [&] {
    TinyModel alone(
        {.batch_size = 1, .prefill_chunk = 200, .block_tokens = 16, .kv_blocks = 20, .int8 = true});
    return run_all(alone.engine(), requests);
  }();
  return expected;
}

const std::vector<Request>& requests_of_test() {
  static const std::vector<Request> requests = mixed_requests(21, 30);
  return requests;
}

void expect_everything_given_back(TinyModel& model) {
  model.kv().book().check();
  EXPECT_EQ(model.kv().book().tiers().device.reserved(), 0);
  EXPECT_FALSE(model.kv().book().pool().moving());
}

// A schedule that offloads early: everything but a small window leaves the device.
PhaseSchedule early_schedule(std::int64_t p1, double alpha) {
  return {.p1 = p1, .p2 = 1 << 30, .alpha = alpha, .window_tokens = 4};
}

struct Case {
  std::string name;
  std::shared_ptr<const PlacementPolicy> policy;
  std::int64_t host_blocks = 0;
  std::int64_t device_blocks = 0;
  std::int64_t streamed_layers = 0;
  bool host_attention = false;
};

std::vector<Case> cases() {
  return {
      {"triphase_by_pressure", std::make_shared<TriphasePolicy>(early_schedule(1 << 20, 0.0)), 120,
       20},
      {"triphase_p1_0", std::make_shared<TriphasePolicy>(early_schedule(0, 0.9)), 150, 40},
      {"triphase_p1_5", std::make_shared<TriphasePolicy>(early_schedule(5, 0.6)), 150, 60},
      {"triphase_on_demand",
       std::make_shared<TriphasePolicy>(PhaseSchedule{.host_tier = false, .on_demand = true}), 0,
       15},
      {"accelerate", std::make_shared<AcceleratePolicy>(AccelerateOptions{}), 150, 20},
      {"flexgen_0", std::make_shared<FlexGenPolicy>(FlexGenOptions{.device_kv_share = 0.0}), 200,
       20},
      {"flexgen_50",
       std::make_shared<FlexGenPolicy>(
           FlexGenOptions{.device_kv_share = 0.5, .device_weight_share = 0.5}),
       200, 60, 1},
      {"flexgen_50_by_twos",
       std::make_shared<FlexGenPolicy>(FlexGenOptions{
           .device_kv_share = 0.5, .device_weight_share = 0.5, .gpu_batch = 2, .num_batches = 3}),
       200, 60, 1},
      {"flexgen_0_cpu_attention",
       std::make_shared<FlexGenPolicy>(
           FlexGenOptions{.device_kv_share = 0.0, .host_kv = HostKvUse::kCpuAttention}),
       200, 20, 0, true},
      {"flexgen_50_cpu_attention",
       std::make_shared<FlexGenPolicy>(FlexGenOptions{.device_kv_share = 0.5,
                                                      .gpu_batch = 2,
                                                      .num_batches = 2,
                                                      .host_kv = HostKvUse::kCpuAttention}),
       200, 60, 1, true},
      {"zero", std::make_shared<ZeroPolicy>(ZeroOptions{}), 0, 60, 2},
      {"zero_2023", std::make_shared<ZeroPolicy>(ZeroOptions{.mode = ZeroMode::k2023}), 200, 20, 2,
       true},
      {"vllm_drop", std::make_shared<VllmPolicy>(VllmOptions{}), 0, 15},
      {"vllm_swap", std::make_shared<VllmPolicy>(VllmOptions{.preemption = PreemptMode::kSwap}), 60,
       15},
  };
}

class PlacementInvariant : public testing::TestWithParam<Case> {};
class PlacementInvariantInt8 : public testing::TestWithParam<Case> {};

// A model with experts, in the second layer alone, with sinks and biases, or in both.
ModelConfig expert_config(bool mixed) {
  ModelConfig config = tiny_config();
  config.experts = {.count = 5, .per_token = 2, .ffn_size = 20};
  config.attention.sinks = config.experts.bias = mixed;
  if (mixed) config.experts.plain_layers = {true, false};
  return config;
}

TEST_P(PlacementInvariant, ExpertsToo) {
  const Case& test = GetParam();
  const auto& requests = requests_of_test();
  for (const bool mixed : {false, true}) {
    TinyModel alone({.batch_size = 1, .prefill_chunk = 200, .block_tokens = 40, .kv_blocks = 8},
                    expert_config(mixed));
    const auto expected = run_all(alone.engine(), requests);
    TinyModelOptions options;
    options.batch_size = 5;
    options.prefill_chunk = 23;
    options.kv_blocks = test.device_blocks;
    options.host_blocks = test.host_blocks;
    options.staging_blocks = test.host_blocks == 0 ? 0 : 64;
    options.streamed_layers = test.streamed_layers;
    options.host_attention = test.host_attention;
    options.threads = 2;
    options.policy = test.policy;
    TinyModel model(options, expert_config(mixed));
    expect_equal(expected, run_all(model.engine(), requests));
    expect_everything_given_back(model);
  }
}

TEST_P(PlacementInvariant, PlacementNeverChangesTheAnswer) {
  const Case& test = GetParam();
  const auto& requests = requests_of_test();
  std::uint64_t offloaded = 0;
  std::uint64_t preempted = 0;
  std::uint64_t attended = 0;  // rows on the host
  for (int round = 0; round < 6; ++round) {
    TinyModelOptions options;
    options.batch_size = 1 + round;
    options.prefill_chunk = 7 + 9 * round % 40;
    options.block_tokens = 8;
    options.kv_blocks = test.device_blocks + round % 3;
    options.host_blocks = test.host_blocks;
    options.staging_blocks = test.host_blocks == 0 ? 0 : (round % 2 == 0 ? 20 : 64);
    options.streamed_layers = test.streamed_layers;
    options.host_attention = test.host_attention;
    options.prefetch = round != 3;
    options.threads = 1 + round % 2;
    options.policy = test.policy;
    if (round == 5) options.link = EmulatedLink{.bytes_per_second = 2e8, .seconds_per_record = 0};
    TinyModel model(options);
    SCOPED_TRACE(testing::Message() << "batch " << options.batch_size << " chunk "
                                    << options.prefill_chunk << " blocks " << options.kv_blocks);
    expect_equal(expected_of(requests), run_all(model.engine(), requests));
    expect_everything_given_back(model);
    expect_each_token_counted_once(model.engine(), requests);
    const PlacementStats& stats = model.engine().placement().stats();
    offloaded += stats.offloaded_blocks;
    preempted += stats.swaps + stats.drops;
    if (const HostAttention* host = model.model().attention().host_attention()) {
      attended += host->use().rows;
    }
  }
  // The test means nothing where nothing moved.
  if (test.host_blocks > 0) {
    EXPECT_GT(offloaded, 20U);
  }
  EXPECT_EQ(attended > 100, test.host_attention);
  if (test.name.starts_with("vllm")) {
    EXPECT_GT(preempted, 3U);
  }
}

// The same with INT8 KV: a token's value does not depend on whether it ever travelled, nor on how
// prefill was cut into chunks.
TEST_P(PlacementInvariantInt8, PlacementNeverChangesTheAnswer) {
  const Case& test = GetParam();
  const auto& requests = requests_of_test();
  for (int round = 0; round < 3; ++round) {
    TinyModelOptions options;
    options.batch_size = 1 + 2 * round;
    options.prefill_chunk = 7 + 20 * round;
    options.block_tokens = 16;
    options.int8 = true;
    options.kv_blocks = test.device_blocks / 2 + 3;
    options.host_blocks = test.host_blocks;
    options.staging_blocks = test.host_blocks == 0 ? 0 : 24;
    options.streamed_layers = test.streamed_layers;
    options.policy = test.policy;
    TinyModel model(options);
    SCOPED_TRACE(round);
    expect_equal(expected_int8(requests), run_all(model.engine(), requests));
    expect_everything_given_back(model);
    EXPECT_EQ(model.kv().partial_pages().free_pages(), model.kv().partial_pages().pages());
  }
}

TEST(Int8, IsNotTheUnquantizedAnswerButNearIt) {
  const auto& requests = requests_of_test();
  const auto& exact = expected_of(requests);
  const auto& rounded = expected_int8(requests);
  std::size_t first_equal = 0;
  std::size_t compared = 0;
  bool any_difference = false;
  for (const auto& [index, completion] : exact) {
    const Completion& other = rounded.at(index);
    ASSERT_EQ(completion.error.has_value(), other.error.has_value());
    if (completion.tokens.empty() || other.tokens.empty()) continue;
    ++compared;
    if (completion.tokens.front() != other.tokens.front()) continue;
    ++first_equal;
    any_difference |= completion.logprobs.front().logprob != other.logprobs.front().logprob;
    EXPECT_NEAR(completion.logprobs.front().logprob, other.logprobs.front().logprob, 0.05);
  }
  EXPECT_TRUE(any_difference);
  EXPECT_GE(compared, 20U);
  EXPECT_GE(first_equal * 10, compared * 8);
}

// What is attended on the host is not INT8.
std::vector<Case> int8_cases() {
  std::vector<Case> all = cases();
  std::erase_if(all, [](const Case& test) { return test.host_attention; });
  return all;
}

INSTANTIATE_TEST_SUITE_P(Policies, PlacementInvariantInt8, testing::ValuesIn(int8_cases()),
                         [](const auto& param) { return param.param.name; });

INSTANTIATE_TEST_SUITE_P(Policies, PlacementInvariant, testing::ValuesIn(cases()),
                         [](const auto& param) { return param.param.name; });

TEST(Placement, StreamedWeightsCrossTheLinkAndChangeNothing) {
  const auto& requests = requests_of_test();
  ModelConfig config = tiny_config();
  config.layers = 5;
  TinyModel resident({.batch_size = 3}, config);
  const auto expected = run_all(resident.engine(), requests);
  for (const std::int64_t streamed : {1, 2, 3, 5}) {
    for (const bool prefetch : {true, false}) {
      TinyModel model({.batch_size = 3, .streamed_layers = streamed, .prefetch = prefetch}, config);
      expect_equal(expected, run_all(model.engine(), requests));
      ASSERT_GT(model.host_pool().use(MemoryTag::kWeights).peak, 0U);
      const std::uint64_t crossed = model.transfers().stats(Lane::kToDevice).bytes;
      EXPECT_GE(crossed, model.host_pool().use(MemoryTag::kWeights).peak);
      if (streamed > 2) {
        EXPECT_GE(crossed, model.host_pool().use(MemoryTag::kWeights).peak *
                               (model.engine().stats().steps - 1));
      }
    }
  }
}

TEST(Placement, AFailedTransferEndsTheRunAndLosesNoMemory) {
  const auto& requests = requests_of_test();
  for (int nth = 1; nth < 40; nth += 3) {
    TinyModelOptions options{.batch_size = 4, .block_tokens = 8, .kv_blocks = 20};
    options.host_blocks = 150;
    options.staging_blocks = 40;
    options.policy = std::make_shared<TriphasePolicy>(early_schedule(0, 0.9));
    auto model = std::make_unique<TinyModel>(options);
    model->transfers().fail_transfer(nth);
    try {
      run_all(model->engine(), requests);
      FAIL() << "the failure went unseen";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), "E-DEV-TRANSFER");
    }
    model.reset();  // nothing hangs
  }
}

}  // namespace
}  // namespace triphase
