// Simulator and engine are one machine: from the same lines and the same division of memory, each
// policy sees the same state, answers with the same actions, and the same bytes cross the link,
// step by step to the end of the job.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "runtime/plan/config_costs.h"
#include "scheduler/cost/hardware_spec.h"
#include "scheduler/placement/accelerate_policy.h"
#include "scheduler/placement/flexgen_policy.h"
#include "scheduler/placement/triphase_policy.h"
#include "scheduler/placement/vllm_policy.h"
#include "scheduler/placement/zero_policy.h"
#include "scheduler/simulator/simulator.h"
#include "tests/support/engine_runs.h"
#include "tests/support/tiny_model.h"

namespace triphase {
namespace {

// What one step saw, decided and moved, sequences named by their place in the step's list, since
// ids are anybody's choice.
struct DecidedStep {
  std::string seen;
  std::vector<std::string> actions;
  bool decodes = false;
  std::int64_t to_device = 0;  // bytes
  std::int64_t to_host = 0;
};

std::string text_of(const PlacementStep& step) {
  const KvBook& book = step.book();
  std::string text = "free " + std::to_string(book.tiers().device.free()) + " device, " +
                     std::to_string(book.tiers().host.free()) + " host, " +
                     std::to_string(book.tiers().inputs.free()) + " inputs";
  const auto describe = [&](const char* kind, const PlacedRequest& s) {
    text += "\n  " + std::string(kind) + " " + std::to_string(s.admission) + ": context " +
            std::to_string(s.context) + " step " + std::to_string(s.step_tokens) + " prefill " +
            std::to_string(s.prefill_tokens) + " of " + std::to_string(s.max_tokens);
    if (!s.id.valid()) return;
    const KvSequence& kv = book.sequence(s.id);
    text += ", blocks " + std::to_string(book.table(s.id).recomputable()) + " + " +
            std::to_string(book.table(s.id).on_host()) + " + " +
            std::to_string(book.table(s.id).on_device()) + ", inputs " +
            std::to_string(book.table(s.id).with_inputs()) + ", reserved " +
            std::to_string(kv.reserved_device) + " + " + std::to_string(kv.reserved_host) +
            ", shares " + std::to_string(book.table(s.id).shared());
  };
  for (const PlacedRequest& request : step.running()) describe("running", request);
  for (const PlacedRequest& request : step.preempted()) describe("preempted", request);
  return text;
}

// Does what another policy does and notes it.
class Watched final : public PlacementPolicy {
 public:
  explicit Watched(std::shared_ptr<const PlacementPolicy> policy) : policy_(std::move(policy)) {}

  [[nodiscard]] std::string_view name() const override { return policy_->name(); }
  [[nodiscard]] StaticPlacement start(const JobView& job) const override {
    return policy_->start(job);
  }
  [[nodiscard]] std::int64_t longest_request(const PlacementLimits& limits) const override {
    return policy_->longest_request(limits);
  }
  [[nodiscard]] std::int64_t input_blocks(std::int64_t block_tokens) const override {
    return policy_->input_blocks(block_tokens);
  }
  void decide(PlacementStep& step) const override {
    DecidedStep& noted = steps_.emplace_back();
    noted.seen = text_of(step);
    std::vector<SequenceId> places;
    for (const PlacedRequest& request : step.running()) {
      places.push_back(request.id);
      noted.decodes = noted.decodes || !request.prefilling();
    }
    policy_->decide(step);
    noted.seen += "\n  waiting";
    for (const WaitingRequest& request : step.looked_at()) {
      noted.seen += " " + std::to_string(request.prompt_tokens) + " to " +
                    std::to_string(request.max_tokens) + " sharing " +
                    std::to_string(request.found_blocks());
    }
    for (PlacementAction action : step.actions()) {
      std::visit(
          [&](auto& one) {
            one.sequence = SequenceId(std::ranges::find(places, one.sequence) - places.begin());
          },
          action);
      noted.actions.push_back(to_text(action));
    }
  }

  std::vector<DecidedStep>& steps() const { return steps_; }

 private:
  std::shared_ptr<const PlacementPolicy> policy_;
  mutable std::vector<DecidedStep> steps_;
};

TinyModelOptions with_policy(TinyModelOptions options,
                             std::shared_ptr<const PlacementPolicy> policy) {
  options.policy = std::move(policy);
  return options;
}

std::vector<DecidedStep> run_engine(TinyModel& model, const Watched& policy,
                                    const TinyModelOptions& options,
                                    const std::vector<Request>& requests) {
  if (const auto* flexgen = dynamic_cast<const FlexGenPolicy*>(options.policy.get())) {
    model.model().zigzag().set_batch(flexgen->options().gpu_batch);
  }
  std::vector<DecidedStep>& steps = policy.steps();
  Engine& engine = model.engine();
  // What is brought early is of the step that reads it.
  const auto bytes = [&](Lane lane) {
    model.transfers().drain();
    const auto blocks = static_cast<std::uint64_t>(model.kv().prefetched().unused());
    const std::uint64_t early =
        lane == Lane::kToDevice ? blocks * model.kv().memory().shape().page_bytes() : 0;
    return static_cast<std::int64_t>(model.transfers().stats(lane).bytes - early);
  };
  std::size_t next = 0;
  std::int64_t to_device = 0;
  std::int64_t to_host = 0;
  while (next < requests.size() || engine.in_flight() > 0) {
    while (next < requests.size() && engine.has_room()) engine.submit(requests[next++]);
    for (const Completion& completion : engine.step()) {
      EXPECT_FALSE(completion.error.has_value()) << completion.error->message;
    }
    steps.back().to_device = bytes(Lane::kToDevice) - to_device;
    steps.back().to_host = bytes(Lane::kToHost) - to_host;
    to_device += steps.back().to_device;
    to_host += steps.back().to_host;
  }
  return steps;
}

struct SimulatedSteps {
  std::vector<DecidedStep> steps;
  double inputs_to_device = 0.0;
  double inputs_to_host = 0.0;
};

SimulatedSteps run_simulator(const TinyModelOptions& options, const ModelConfig& config,
                             const PlacementLimits& limits, const std::vector<Request>& requests) {
  const ModelCosts costs = model_costs(config, options.dtype);
  SimulatedJob job{.model = costs,
                   .weights_dtype = options.dtype,
                   .kv_dtype = options.int8 ? DType::kInt8 : options.dtype,
                   .block_tokens = options.block_tokens,
                   .device_memory = std::uint64_t{1} << 40,
                   .host_memory = std::uint64_t{1} << 40,
                   .activation_bytes = sizeof(float),
                   .batch_size = options.batch_size,
                   .prefill_chunk = options.prefill_chunk,
                   .division = MemoryDivision{.limits = limits,
                                              .streamed_layers = options.streamed_layers,
                                              .placement = {},
                                              .staging_pages = options.staging_blocks},
                   .keep_steps = true};
  for (const Request& request : requests) {
    job.requests.push_back({static_cast<std::int64_t>(request.tokens.size()),
                            request.sampling.max_tokens, request.tokens});
  }
  const HardwareProfile profile = derive_profile(*find_hardware("t4"), costs, options.dtype);
  const CostModel cost(profile);
  const Watched policy(options.policy);
  const SimulationResult result = simulate(policy, cost, job);
  EXPECT_EQ(result.infeasible, "");
  EXPECT_EQ(result.kv_dtype, job.kv_dtype);
  SimulatedSteps simulated{policy.steps(), result.inputs_h2d_bytes, result.inputs_d2h_bytes};
  EXPECT_EQ(simulated.steps.size(), result.steps.size());
  for (std::size_t index = 0; index < simulated.steps.size(); ++index) {
    simulated.steps[index].to_device = static_cast<std::int64_t>(result.steps[index].h2d_bytes);
    simulated.steps[index].to_host = static_cast<std::int64_t>(result.steps[index].d2h_bytes);
  }
  return simulated;
}

// What the engine reads on the host, as the simulator knows it. At most: what a decoded row reads
// depends on its numbers; the simulator counts what dense attention reads. Almost: a shared block
// that is fetched before its step crosses once; the simulator counts it once for each group.
enum class Reads { kEqual, kAtMost, kAlmost };
void expect_same(const std::vector<DecidedStep>& engine, const std::vector<DecidedStep>& simulator,
                 Reads reads) {
  for (std::size_t index = 0; index < std::min(engine.size(), simulator.size()); ++index) {
    const DecidedStep& ours = engine[index];
    const DecidedStep& theirs = simulator[index];
    ASSERT_EQ(ours.seen, theirs.seen) << "step " << index;
    ASSERT_EQ(ours.actions, theirs.actions) << "step " << index << "\n" << ours.seen;
    if (reads != Reads::kEqual) {
      ASSERT_LE(ours.to_device, theirs.to_device) << "step " << index;
      if (reads == Reads::kAlmost) {
        ASSERT_GE(ours.to_device * 8, theirs.to_device * 7) << "step " << index;
      }
    } else {
      ASSERT_EQ(ours.to_device, theirs.to_device) << "step " << index << "\n" << ours.seen;
    }
    ASSERT_EQ(ours.to_host, theirs.to_host) << "step " << index << "\n" << ours.seen;
  }
  ASSERT_EQ(engine.size(), simulator.size());
}

// Lines of many lengths, or of one, that share no prefix, or those of one of two families.
std::vector<Request> lines_of_job(std::mt19937& random, bool ragged, bool families = false) {
  std::vector<Request> requests;
  const std::size_t count = 1 + random() % 14;
  for (std::size_t i = 0; i < count; ++i) {
    auto tokens = random_tokens(random, ragged ? 1 + random() % 60 : 40);
    tokens[0] = static_cast<TokenId>(i);
    if (families) {
      const std::size_t family = i % 2;
      const std::size_t common = std::min<std::size_t>(tokens.size(), family == 0 ? 9 : 20);
      std::fill_n(tokens.begin(), common, static_cast<TokenId>(family));
    }
    requests.push_back(
        request(i, tokens, ragged ? 1 + static_cast<std::int64_t>(random() % 30) : 24));
    requests.back().sampling.ignore_eos = true;
  }
  return requests;
}

struct Case {
  std::string name;
  std::shared_ptr<const PlacementPolicy> policy;
  std::int64_t host_blocks = 0;    // tokens of KV, in blocks of 8
  std::int64_t device_blocks = 0;  // the least; jobs have up to twice as many
  std::int64_t streamed_layers = 0;
  bool prefetch = true;
  std::string must_happen;        // the beginning of an action's text
  std::int64_t input_tokens = 0;  // saved of each line
  bool host_attention = false;
};

std::vector<Case> cases() {
  const auto schedule = [](std::int64_t p1, double alpha) {
    return std::make_shared<TriphasePolicy>(
        PhaseSchedule{.p1 = p1, .p2 = 1 << 30, .alpha = alpha, .window_tokens = 4});
  };
  const auto third = [](std::int64_t p1, std::int64_t p2, double beta) {
    return std::make_shared<TriphasePolicy>(PhaseSchedule{
        .p1 = p1, .p2 = p2, .alpha = 0.9, .beta = beta, .window_tokens = 4, .input_tokens = 32});
  };
  return {
      {"phase_3_at_once", third(0, 0, 1.0), 150, 40, 0, true, "discard", 32},
      {"phase_3_half_later", third(2, 6, 0.5), 150, 40, 2, true, "discard", 32},
      {"phase_3_no_prefetch", third(0, 3, 0.8), 150, 40, 0, false, "discard", 32},
      {"triphase_by_pressure", schedule(1 << 20, 0.0), 150, 20, 0, true, "offload"},
      {"triphase_p1_0", schedule(0, 0.9), 150, 40, 0, true, "offload"},
      {"triphase_p1_5_streamed", schedule(5, 0.6), 150, 40, 3, true, "offload"},
      {"triphase_little_host", schedule(1 << 20, 0.0), 20, 20, 0, true, "offload"},
      {"flexgen_0",
       std::make_shared<FlexGenPolicy>(
           FlexGenOptions{.device_kv_share = 0.0, .device_weight_share = 0.0}),
       200, 20, 4, true, "offload"},
      {"flexgen_50_no_overlap",
       std::make_shared<FlexGenPolicy>(
           FlexGenOptions{.device_kv_share = 0.5, .device_weight_share = 0.5, .overlap = false}),
       200, 60, 2, false, "offload"},
      {"flexgen_50_by_twos",
       std::make_shared<FlexGenPolicy>(FlexGenOptions{
           .device_kv_share = 0.5, .device_weight_share = 0.5, .gpu_batch = 2, .num_batches = 2}),
       200, 60, 2, true, "offload"},
      {"flexgen_cpu_attention",
       std::make_shared<FlexGenPolicy>(
           FlexGenOptions{.device_kv_share = 0.0, .host_kv = HostKvUse::kCpuAttention}),
       200, 20, 0, true, "offload", 0, true},
      {"flexgen_50_cpu_attention",
       std::make_shared<FlexGenPolicy>(FlexGenOptions{.device_kv_share = 0.5,
                                                      .device_weight_share = 0.5,
                                                      .host_kv = HostKvUse::kCpuAttention}),
       200, 60, 2, true, "offload", 0, true},
      {"triphase_on_demand",
       std::make_shared<TriphasePolicy>(PhaseSchedule{.host_tier = false, .on_demand = true}), 0,
       14, 0, true, "preempt"},
      {"vllm_drop", std::make_shared<VllmPolicy>(VllmOptions{}), 0, 14, 0, true, "preempt"},
      {"vllm_swap", std::make_shared<VllmPolicy>(VllmOptions{.preemption = PreemptMode::kSwap}), 60,
       14, 0, true, "resume"},
      {"accelerate", std::make_shared<AcceleratePolicy>(AccelerateOptions{}), 150, 20, 0, true,
       "offload"},
      {"zero", std::make_shared<ZeroPolicy>(ZeroOptions{}), 0, 20, 4, true, "admit"},
      {"zero_2023", std::make_shared<ZeroPolicy>(ZeroOptions{.mode = ZeroMode::k2023}), 200, 20, 4,
       true, "offload", 0, true},
      {"zero_two_layers", std::make_shared<ZeroPolicy>(ZeroOptions{}), 0, 20, 2, true, "admit"},
      {"device_only", std::make_shared<DeviceOnlyPolicy>(), 0, 14, 0, true, "admit"},
  };
}

TinyModelOptions options_of(const Case& test, std::mt19937& random, bool int8) {
  TinyModelOptions options;
  options.int8 = int8;
  // As many tokens in longer blocks, with INT8.
  const std::int64_t longer = int8 ? 2 : 1;
  options.block_tokens = 8 * longer;
  options.batch_size = 1 + static_cast<std::int64_t>(random() % 6);
  options.prefill_chunk = 7 + static_cast<std::int64_t>(random() % 40);
  options.kv_blocks =
      (test.device_blocks + static_cast<std::int64_t>(random() % test.device_blocks)) / longer + 3;
  options.host_blocks = test.host_blocks / longer;
  options.staging_blocks = test.host_blocks == 0 ? 0 : 64;
  options.input_tokens = test.input_tokens;
  options.input_blocks = test.input_tokens / options.block_tokens * options.batch_size;
  options.streamed_layers = test.streamed_layers;
  options.prefetch = test.prefetch;
  options.host_attention = test.host_attention;
  options.policy = test.policy;
  return options;
}

class SimulatorAgreement : public testing::TestWithParam<Case> {};

// windows_apart: layers with windows keep KV as far as these reach, in 6 blocks of 8 tokens. There
// is room for a whole one, and half of the others.
void expect_agreement(const Case& test, const ModelConfig& config, bool windows_apart = false,
                      bool families = false) {
  std::int64_t happened = 0;
  std::int64_t moved = 0;
  std::uint64_t attended = 0;
  std::uint64_t early = 0;
  for (std::uint32_t seed = 0; seed < 16; ++seed) {
    std::mt19937 random(seed);
    TinyModelOptions options =
        options_of(test, random, /*int8=*/seed % 4 == 3 && !test.host_attention);
    if (windows_apart) {
      options.windows_apart = true;
      options.kv_blocks += 3 * (6 + 3 * (options.batch_size - 1) + options.prefill_chunk / 8);
    }
    if (families) options.kv_blocks = options.kv_blocks * 3 / 4;  // less is needed
    const std::vector<Request> requests = lines_of_job(random, /*ragged=*/seed % 2 == 0, families);
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << ", batch " << options.batch_size << ", chunk "
                 << options.prefill_chunk << ", " << options.kv_blocks << " device blocks");
    const auto watched = std::make_shared<const Watched>(options.policy);
    TinyModel model(with_policy(options, watched), config);
    const std::vector<DecidedStep> engine = run_engine(model, *watched, options, requests);
    const SimulatedSteps simulator =
        run_simulator(options, config, model.engine().placement().limits(), requests);
    expect_same(engine, simulator.steps,
                families && test.prefetch ? Reads::kAlmost : Reads::kEqual);
    if (testing::Test::HasFatalFailure()) return;
    early += model.kv().prefetched().use_so_far().brought;
    EXPECT_EQ(model.kv().prefetched().use_so_far().unused, 0U);
    if (const HiddenStates* inputs = model.model().attention().hidden_states()) {
      EXPECT_EQ(simulator.inputs_to_host, static_cast<double>(inputs->use().saved_bytes));
      const auto read =
          static_cast<double>(model.model().attention().kv_step().bytes_read().inputs);
      EXPECT_EQ(simulator.inputs_to_device, read);
      EXPECT_GT(simulator.inputs_to_host, 0.0);
    }
    if (const HostAttention* host = model.model().attention().host_attention()) {
      EXPECT_EQ(host->use().queries, host->use().results);
      EXPECT_EQ(host->use().results, host->use().rows * 32 * sizeof(float)) << "4 heads of 8";
      attended += host->use().rows;
    }
    for (const DecidedStep& step : engine) {
      moved += step.to_device + step.to_host;
      happened += std::ranges::count_if(step.actions, [&](const std::string& action) {
        return action.starts_with(test.must_happen);
      });
    }
  }
  EXPECT_EQ(attended > 1000, test.host_attention);
  // Policies whose lines read the host in every step.
  const bool reads = test.must_happen == "offload" || test.must_happen == "discard";
  EXPECT_EQ(early > 0, reads && test.prefetch && !test.host_attention);
  // Agreement about nothing means nothing.
  EXPECT_GE(happened, 10) << test.must_happen;
  // Requests with window blocks are not swapped.
  const bool moves = test.host_blocks > 0 && !(windows_apart && test.policy->name() == "vllm");
  if (moves || test.streamed_layers > 0) {
    EXPECT_GT(moved, 0);
  }
}

// Hidden states pass through pages of K and V that are as wide.
ModelConfig config_of(const Case& test) {
  ModelConfig config = tiny_config();
  config.layers = 4;
  if (test.input_tokens > 0) config.kv_heads = config.heads;
  return config;
}

TEST_P(SimulatorAgreement, ActionsAndBytesAreTheEngines) {
  expect_agreement(GetParam(), config_of(GetParam()));
}

// Lines of two families, each of which begins alike.
TEST_P(SimulatorAgreement, SoTheyAreWherePromptsShareAPrefix) {
  expect_agreement(GetParam(), config_of(GetParam()), false, true);
}

// Blocks on the host that lie before a layer's window are not read there.
TEST_P(SimulatorAgreement, SoTheyAreWhereSomeLayersHaveAWindow) {
  ModelConfig config = config_of(GetParam());
  config.sliding_window = {0, 12, 30, 12};
  expect_agreement(GetParam(), config);
}

// The same where layers with windows keep KV as far as these reach: they read nothing on the host.
class WindowsAgreement : public testing::TestWithParam<Case> {};

TEST_P(WindowsAgreement, ActionsAndBytesAreTheEngines) {
  ModelConfig config = config_of(GetParam());
  config.sliding_window = {0, 12, 30, 12};
  expect_agreement(GetParam(), config, true);
}

// The same decisions with a sparse method, and less to bring: tokens that are chosen ahead, or once
// the query is known.
class SparseAgreement : public testing::TestWithParam<Case> {};

TEST_P(SparseAgreement, MethodsChangeNoDecision) {
  const Case& test = GetParam();
  ModelConfig config = tiny_config();
  config.layers = 4;
  if (test.input_tokens > 0) config.kv_heads = config.heads;
  for (const AttentionKind kind : {AttentionKind::kSwa, AttentionKind::kQuest}) {
    std::int64_t brought = 0;
    std::int64_t whole = 0;
    for (std::uint32_t seed = 0; seed < 2; ++seed) {
      std::mt19937 random(seed + 40);
      TinyModelOptions options = options_of(test, random, /*int8=*/seed == 1);
      options.attention.kind = kind;
      options.attention.quest.k = 8;
      options.attention.quest.page = 4;
      options.attention.quest.dense_layers = 1;
      const std::vector<Request> requests = lines_of_job(random, /*ragged=*/seed == 0);
      SCOPED_TRACE(testing::Message() << attention_name(kind) << ", seed " << seed);
      const auto watched = std::make_shared<const Watched>(options.policy);
      TinyModel model(with_policy(options, watched), config);
      const std::vector<DecidedStep> engine = run_engine(model, *watched, options, requests);
      const SimulatedSteps simulator =
          run_simulator(options, config, model.engine().placement().limits(), requests);
      expect_same(engine, simulator.steps, Reads::kAtMost);
      if (HasFatalFailure()) return;
      for (std::size_t index = 0; index < engine.size(); ++index) {
        brought += engine[index].to_device;
        whole += simulator.steps[index].to_device;
      }
    }
    // A policy that swaps whole sequences brings whole blocks.
    if (test.host_blocks > 0 && test.policy->name() != "vllm") {
      EXPECT_LT(brought, whole);
    }
  }
}

// All but those that attend densely on the host, and those that decode again what they dropped:
// their lines are then no longer where the simulator thinks.
std::vector<Case> sparse_cases() {
  std::vector<Case> all = cases();
  std::erase_if(all, [](const Case& test) {
    return test.name == "vllm_drop" || test.name == "triphase_on_demand" || test.host_attention;
  });
  return all;
}

INSTANTIATE_TEST_SUITE_P(Policies, SparseAgreement, testing::ValuesIn(sparse_cases()),
                         [](const auto& param) { return param.param.name; });

// Those of policies that keep windows apart.
std::vector<Case> window_cases() {
  std::vector<Case> kept = cases();
  std::erase_if(kept, [](const Case& one) {
    const std::string_view policy = one.policy->name();
    return policy != "triphase" && policy != "vllm" && policy != "device-only";
  });
  return kept;
}
INSTANTIATE_TEST_SUITE_P(Policies, WindowsAgreement, testing::ValuesIn(window_cases()),
                         [](const auto& param) { return param.param.name; });

INSTANTIATE_TEST_SUITE_P(Policies, SimulatorAgreement, testing::ValuesIn(cases()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace triphase
