#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <stdexcept>

#include "base/error.h"
#include "scheduler/placement/accelerate_policy.h"
#include "scheduler/placement/device_only_policy.h"
#include "scheduler/placement/flexgen_policy.h"
#include "scheduler/placement/triphase_policy.h"
#include "scheduler/placement/vllm_policy.h"
#include "scheduler/placement/zero_policy.h"
#include "tests/unit/scheduler/placement_world.h"

namespace triphase {
namespace {

struct Outcome {
  std::int64_t steps = 0;
  std::int64_t preemptions = 0, offloaded = 0, discarded = 0, max_running = 0;
};

// Runs a job to its end, every decision and every book checked.
Outcome run(const PlacementPolicy& policy, const PlacementLimits& limits,
            std::vector<WorldLine> lines) {
  const auto count = static_cast<std::int64_t>(lines.size());
  std::int64_t tokens = 0;
  for (const WorldLine& line : lines) tokens += line.max_tokens;
  PlacementWorld world(limits, std::move(lines));
  Outcome outcome;
  while (!world.finished()) {
    KvBook copy = world.book();
    PlacementStep again = world.view(copy);
    policy.decide(again);
    EXPECT_EQ(world.step(policy), again.actions()) << "a pure function";
    if (++outcome.steps > 30 * tokens + 100) throw std::runtime_error("the job does not end");
  }
  EXPECT_EQ(world.finished_lines(), count);
  outcome.preemptions = world.preemptions();
  outcome.offloaded = world.offloaded();
  outcome.discarded = world.discarded();
  outcome.max_running = world.max_running();
  return outcome;
}

std::vector<WorldLine> equal_lines(int count, std::int64_t prompt, std::int64_t max_tokens) {
  return std::vector<WorldLine>(static_cast<std::size_t>(count),
                                {prompt, max_tokens, max_tokens, 0});
}

// INT8 blocks of another length are other numbers: a policy must not change answers.
TEST(VllmPolicy, HasBlocksOfItsOwnWhereTheyShapeNoValue) {
  JobView job{.layers = 10, .block_tokens = 64, .batch_size = 1, .longest_tokens = 10};
  EXPECT_EQ(VllmPolicy(VllmOptions{}).start(job).block_tokens, kVllmBlockTokens);
  job.int8_kv = true;
  EXPECT_FALSE(VllmPolicy(VllmOptions{}).start(job).block_tokens.has_value());
}

// The systems behind the other policies keep the KV of all layers.
TEST(WindowsApart, AreForPoliciesOfTodaysSystems) {
  const JobView job{.layers = 10, .block_tokens = 4, .batch_size = 1, .longest_tokens = 10};
  EXPECT_TRUE(TriphasePolicy(PhaseSchedule{}).start(job).windows_apart);
  EXPECT_TRUE(VllmPolicy(VllmOptions{}).start(job).windows_apart);
  EXPECT_TRUE(DeviceOnlyPolicy().start(job).windows_apart);
  EXPECT_FALSE(FlexGenPolicy(FlexGenOptions{}).start(job).windows_apart);
  EXPECT_FALSE(AcceleratePolicy(AccelerateOptions{}).start(job).windows_apart);
  EXPECT_FALSE(ZeroPolicy(ZeroOptions{.mode = ZeroMode::k2023}).start(job).windows_apart);
}

TEST(DeviceOnly, RunsAsManyAsTheirLongestLengthsAllow) {
  const Outcome outcome = run(DeviceOnlyPolicy(), small_limits(), equal_lines(6, 4, 16));
  EXPECT_EQ(outcome.max_running, 2) << "10 blocks hold two lines of 4 blocks";
  EXPECT_EQ(outcome.preemptions + outcome.offloaded, 0);
}

TEST(Vllm, AdmitsMoreThanFitAtTheEndAndPreempts) {
  for (const PreemptMode mode : {PreemptMode::kDrop, PreemptMode::kSwap}) {
    const Outcome outcome =
        run(VllmPolicy({.preemption = mode}), small_limits(), equal_lines(6, 4, 16));
    EXPECT_GT(outcome.max_running, 2);
    EXPECT_GT(outcome.preemptions, 0);
  }
}

TEST(Triphase, OnDemandRunsAsManyAsVllm) {
  const auto outcome = [](const PlacementPolicy& policy) {
    const Outcome made = run(policy, small_limits(), equal_lines(6, 4, 16));
    return std::pair(made.max_running, made.preemptions);
  };
  EXPECT_EQ(outcome(TriphasePolicy({.host_tier = false, .on_demand = true})),
            outcome(VllmPolicy()));
}

// Prompts of one prefix, three blocks: who has computed it holds it, so that nobody does again.
TEST(Vllm, AResumedRequestSharesThePrefixThatOthersHold) {
  PlacementLimits limits = small_limits();
  limits.device_blocks = 12;
  std::vector<WorldLine> lines = equal_lines(6, 13, 30);
  for (WorldLine& line : lines) line.family = 1;
  PlacementWorld world(limits, lines);
  const VllmPolicy policy({.preemption = PreemptMode::kDrop});
  int resumed = 0;
  while (!world.finished()) {
    const bool prefix_is_held = std::ranges::any_of(
        world.running(), [](const PlacedRequest& request) { return request.context >= 12; });
    KvBook before = world.book();
    const std::vector<PlacedRequest> there = world.view(before).preempted();
    for (const PlacementAction& action : world.step(policy)) {
      const auto* resume = std::get_if<Resume>(&action);
      if (resume == nullptr || !prefix_is_held) continue;
      const auto request = std::ranges::find(there, resume->admission, &PlacedRequest::admission);
      const std::int64_t had =
          limits.blocks_for(std::max(request->prefill_tokens, std::int64_t{1}));
      EXPECT_EQ(resume->device_blocks, had - 3);
      EXPECT_GE(world.book().sequence(resume->sequence).blocks.size(), 3U);
      ++resumed;
    }
  }
  EXPECT_GT(resumed, 2);
}

// A prompt whose first blocks another request has on the host reserves room there for its own.
TEST(HostRequests, ReserveNothingForBlocksThatAreOnTheHost) {
  PlacementLimits limits = small_limits();
  limits.device_blocks = 20;
  std::vector<WorldLine> lines = equal_lines(2, 13, 20);
  for (WorldLine& line : lines) line.family = 1;
  lines[0].ends_at = lines[0].max_tokens;
  limits.batch_size = 1;
  PlacementWorld world(limits, lines);
  const AcceleratePolicy policy;
  while (world.running().empty() || world.running()[0].prefilling()) world.step(policy);
  world.step(policy);  // full blocks leave
  limits.batch_size = 2;
  KvBook book = world.book();
  WaitingRequest waiting{.prompt_tokens = 13, .max_tokens = 20};
  std::vector<TokenId> tokens(13);
  std::iota(tokens.begin(), tokens.end(), 1);
  waiting.tokens = tokens;
  find_shared(book, {}, waiting);
  ASSERT_EQ(waiting.shared_blocks, 3);
  PlacementStep step(limits, 0, book, world.running(), {}, queue_of({waiting}));
  EXPECT_EQ(step.offloaded_blocks(waiting), 3);
  policy.decide(step);
  const auto* admit = std::get_if<Admit>(&step.actions().back());
  ASSERT_NE(admit, nullptr);
  EXPECT_EQ(admit->host_blocks, 5 - 3);
}

TEST(Accelerate, NeedsNoHostWhereTheBatchJustFits) {
  JobView job{.layers = 2,
              .block_tokens = 4,
              .batch_size = 2,
              .longest_tokens = 7,
              .device_budget = 100 + 2 * 30 + 5 + 160,
              .layer_weights = 30,
              .other_weights = 100,
              .scratch = 5,
              .kv_bytes_per_token = 10};
  EXPECT_FALSE(AcceleratePolicy().start(job).host_tier);
  job.device_budget -= 1;
  EXPECT_TRUE(AcceleratePolicy().start(job).host_tier);
}

TEST(Accelerate, KeepsOnlyPartialBlocksOnTheDevice) {
  const Outcome outcome = run(AcceleratePolicy(), small_limits(), equal_lines(6, 4, 16));
  EXPECT_EQ(outcome.max_running, 4) << "two passing blocks each beside two of a prefill chunk";
  EXPECT_EQ(outcome.preemptions, 0);
  EXPECT_GE(outcome.offloaded, 6 * 3);
  PlacementLimits device = small_limits();
  device.host_blocks = 0;
  EXPECT_EQ(run(AcceleratePolicy(), device, equal_lines(6, 4, 16)).offloaded, 0);
}

TEST(FlexGen, RoundsTheDeviceShareDownToWholeSequences) {
  PlacementLimits limits = small_limits();
  limits.device_blocks = 30;
  limits.host_blocks = 50;
  const FlexGenPolicy policy({.device_kv_share = 0.5, .gpu_batch = 5, .num_batches = 1});
  PlacementWorld world(limits, equal_lines(5, 4, 16));
  const PlacementActions actions = world.step(policy);
  ASSERT_EQ(actions.size(), 5u);
  int on_device = 0;
  for (const PlacementAction& action : actions) {
    on_device += std::get<Admit>(action).device_blocks > 0 ? 1 : 0;
  }
  EXPECT_EQ(on_device, 2);
  EXPECT_EQ(run(policy, limits, equal_lines(12, 4, 16)).preemptions, 0);
}

// Blocks that an ended request left are free until they are taken, and then they are the block's.
TEST(FlexGen, CountsCachedBlocksOfItsDeviceShare) {
  PlacementLimits limits = small_limits();
  limits.device_blocks = 12;
  limits.prefill_chunk = 4;
  const FlexGenPolicy policy({.device_kv_share = 1.0, .gpu_batch = 0, .num_batches = 1});
  std::vector<WorldLine> lines = equal_lines(1, 13, 16);
  lines[0].family = 1;
  PlacementWorld first(limits, lines);
  while (!first.finished()) first.step(policy);
  std::vector<TokenId> tokens(13);
  std::iota(tokens.begin(), tokens.end(), 1);
  KvBook book = first.book();
  std::vector<WaitingRequest> waiting(4, {.prompt_tokens = 13, .max_tokens = 16});
  waiting[0].tokens = tokens;
  find_shared(book, {}, waiting[0]);
  ASSERT_EQ(waiting[0].cached_blocks, 3);
  PlacementStep step(limits, 0, book, {}, {}, queue_of(waiting));
  policy.decide(step);
  ASSERT_EQ(step.actions().size(), 3U) << "4 blocks each, three of the first one's cached";
  EXPECT_EQ(std::get<Admit>(step.actions()[0]).device_blocks, 1);
}

// A prefix on the host takes its places there once, for all who share it.
TEST(FlexGen, CountsASharedPrefixOnTheHostOnce) {
  PlacementLimits limits = small_limits();
  limits.device_blocks = 60;
  limits.host_blocks = 70;
  KvBook book({.block_tokens = limits.block_tokens,
               .device_blocks = limits.device_blocks,
               .host_blocks = limits.host_blocks});
  std::vector<TokenId> prefix(130);
  std::iota(prefix.begin(), prefix.end(), 1);
  const SequenceId first = book.admit(prefix, 136, 0, {.device_blocks = 0}).sequence;
  book.append(first, 130);
  book.publish(first, prefix);
  KvMoves moves;
  book.placer(moves).offload(first, 32);
  book.finish_moves();
  book.release(first, moves);
  std::vector<WaitingRequest> waiting(8,
                                      {.prompt_tokens = 130, .max_tokens = 136, .tokens = prefix});
  PlacementStep step(limits, 0, book, {}, {}, queue_of(waiting));
  FlexGenPolicy({.device_kv_share = 0.0, .gpu_batch = 0, .num_batches = 1}).decide(step);
  EXPECT_EQ(step.running_count(), 8) << "32 blocks and two of each one's own";
  EXPECT_EQ(book.tiers().host.free(), 70 - 32 - 8 * 2);
  book.check();
}

TEST(FlexGen, StartsABlockOnlyWhenTheLastHasEnded) {
  PlacementLimits limits = small_limits();
  limits.device_blocks = 100;
  std::vector<WorldLine> lines = equal_lines(4, 4, 16);
  lines[0].ends_at = 5;
  const FlexGenPolicy policy({.device_kv_share = 1.0, .gpu_batch = 2, .num_batches = 1});
  PlacementWorld world(limits, lines);
  while (!world.finished()) {
    const bool idle = world.running().empty();
    EXPECT_TRUE(world.step(policy).empty() || idle);
  }
}

TEST(Triphase, KeepsEverythingOnTheDeviceWhileItFits) {
  const PhaseSchedule schedule{.p1 = 1000, .p2 = 1000};
  EXPECT_EQ(run(TriphasePolicy(schedule), small_limits(), equal_lines(2, 4, 16)).offloaded, 0);
  const Outcome more = run(TriphasePolicy(schedule), small_limits(), equal_lines(4, 4, 24));
  EXPECT_GT(more.offloaded, 0) << "pressure brings Phase II forward";
  EXPECT_EQ(more.preemptions, 0);
  EXPECT_EQ(more.max_running, 3) << "device-only would run one";
}

TEST(Triphase, FollowsItsSchedule) {
  PlacementLimits limits = small_limits();
  limits.device_blocks = 100;
  limits.host_blocks = 100;
  limits.input_blocks = 100;
  const TriphasePolicy policy(
      {.p1 = 8, .p2 = 24, .alpha = 0.5, .beta = 0.5, .window_tokens = 4, .input_tokens = 40});
  PlacementWorld world(limits, equal_lines(1, 8, 48));
  std::int64_t first_host = -1;
  std::int64_t first_recompute = -1;
  while (!world.finished()) {
    const std::vector<PlacedRequest> before = world.running();
    world.step(policy);
    if (world.running().empty() || before.empty()) continue;
    const SequenceId id = before[0].id;
    const std::int64_t decoded = before[0].decode_step();
    if (world.book().table(id).on_host() > 0 && first_host < 0) first_host = decoded;
    if (world.book().table(id).recomputable() > 0 && first_recompute < 0) first_recompute = decoded;
    EXPECT_LE(world.book().table(id).offloaded() * 4, before[0].context / 2);
  }
  EXPECT_EQ(first_host, 8);
  EXPECT_EQ(first_recompute, 24);
}

TEST(Zero, RefusesABatchWhoseKvDoesNotFitAndSaysWhatWould) {
  const JobView job{.layers = 10,
                    .block_tokens = 4,
                    .batch_size = 8,
                    .longest_tokens = 10,
                    .device_budget = 1000,
                    .host_budget = 10000,
                    .layer_weights = 80,
                    .other_weights = 40,
                    .scratch = 0,
                    .kv_bytes_per_token = 10};
  try {
    (void)ZeroPolicy().start(job);
    FAIL() << "96 tokens need 960 bytes and 800 are left";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "E-MEM-FIT");
    EXPECT_THAT(error.hint(), testing::HasSubstr("--batch-size 6 fits"));
  }
  JobView smaller = job;
  smaller.batch_size = 6;
  EXPECT_EQ(ZeroPolicy().start(smaller).streamed_layers, 9)
      << "720 bytes of KV leave room for one resident layer beside two buffers";
  smaller.batch_size = 1;
  EXPECT_EQ(ZeroPolicy().start(smaller).streamed_layers, 0);
}

TEST(Zero, OfTheYear2023KeepsItsKvOnTheHost) {
  const ZeroPolicy policy({.mode = ZeroMode::k2023});
  const Outcome outcome = run(policy, small_limits(), equal_lines(6, 4, 16));
  EXPECT_EQ(outcome.preemptions, 0);
  EXPECT_GE(outcome.offloaded, 6 * 3);
  // A job that the other mode refuses.
  const JobView job{.layers = 10, .block_tokens = 4, .batch_size = 8, .longest_tokens = 10000};
  const StaticPlacement placement = policy.start(job);
  EXPECT_EQ(placement.streamed_layers, 10);
  EXPECT_TRUE(placement.host_tier && placement.host_always);
  EXPECT_EQ(placement.host_kv, HostKvUse::kCpuAttention);
}

struct Case {
  PlacementLimits limits;
  std::vector<WorldLine> lines;
  std::unique_ptr<PlacementPolicy> policy;
};

Case random_case(std::mt19937& random) {
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  Case result;
  PlacementLimits& limits = result.limits;
  limits.layers = pick(1, 3);
  limits.block_tokens = std::int64_t{1} << pick(0, 4);
  limits.device_blocks = pick(4, 60);
  limits.host_blocks = pick(0, 3) == 0 ? 0 : pick(1, 120);
  limits.input_blocks = pick(0, 1) * pick(1, 60);
  limits.batch_size = pick(1, 12);
  limits.prefill_chunk = pick(1, 3) * limits.block_tokens + pick(0, 3);
  const auto real = [&] { return std::uniform_real_distribution<double>(0.0, 1.0)(random); };
  switch (pick(0, 6)) {
    case 0:
      result.policy = std::make_unique<DeviceOnlyPolicy>();
      break;
    case 1:
      result.policy = std::make_unique<ZeroPolicy>(
          ZeroOptions{.mode = pick(0, 1) == 0 ? ZeroMode::k2022 : ZeroMode::k2023});
      break;
    case 2:
      result.policy = std::make_unique<VllmPolicy>(
          VllmOptions{.preemption = pick(0, 2) == 0 ? PreemptMode::kDrop : PreemptMode::kSwap});
      break;
    case 3:
      result.policy = std::make_unique<AcceleratePolicy>();
      break;
    case 4: {
      FlexGenOptions options{
          .device_kv_share = real(), .gpu_batch = pick(0, 4), .num_batches = pick(1, 3)};
      result.policy = std::make_unique<FlexGenPolicy>(options);
      break;
    }
    default: {
      PhaseSchedule schedule{.p1 = pick(0, 30),
                             .alpha = real(),
                             .beta = real(),
                             .window_tokens = pick(0, 12),
                             .window_share = real() * 0.3,
                             .input_tokens = pick(0, 60)};
      schedule.p2 = schedule.p1 + pick(0, 30);
      result.policy = std::make_unique<TriphasePolicy>(schedule);
    }
  }
  const std::string_view name = result.policy->name();
  const bool may = name == "device-only" || name == "vllm" || name == "triphase";
  if (may && pick(0, 1) == 0) {
    limits.device_blocks += pick(0, 60);
    limits.windows = {
        .tokens = pick(1, 50), .blocks = pick(1, 3), .step_tokens = limits.prefill_chunk};
  }
  const std::int64_t longest = std::min<std::int64_t>(result.policy->longest_request(limits), 120);
  if (longest < 2) return result;
  const std::int64_t lines = pick(1, 14);
  for (std::int64_t line = 0; line < lines; ++line) {
    WorldLine entry;
    entry.prompt = pick(1, longest - 1);
    entry.max_tokens = pick(entry.prompt + 1, longest);
    entry.ends_at = pick(entry.prompt + 1, entry.max_tokens);
    entry.family = static_cast<int>(pick(0, 2));
    result.lines.push_back(entry);
  }
  return result;
}

TEST(PlacementProperty, NoPolicyOverCommitsAndEveryLineEnds) {
  std::int64_t offloaded = 0;
  std::int64_t discarded = 0;
  std::int64_t preemptions = 0;
  std::int64_t windows_apart = 0;
  for (unsigned seed = 0; seed < 4000; ++seed) {
    std::mt19937 random(seed);
    const Case job = random_case(random);
    if (job.lines.empty()) continue;
    try {
      const Outcome outcome = run(*job.policy, job.limits, job.lines);
      offloaded += outcome.offloaded;
      discarded += outcome.discarded;
      preemptions += outcome.preemptions;
      windows_apart += job.limits.windows.blocks > 0 && outcome.offloaded > 0 ? 1 : 0;
    } catch (const std::exception& error) {
      FAIL() << "seed " << seed << ", " << job.policy->name() << ": " << error.what();
    }
  }
  EXPECT_GT(offloaded, 10'000);
  EXPECT_GT(discarded, 100);
  EXPECT_GT(preemptions, 100);
  EXPECT_GT(windows_apart, 100);
}

}  // namespace
}  // namespace triphase
