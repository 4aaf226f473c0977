#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "scheduler/placement/accelerate_policy.h"
#include "scheduler/placement/device_only_policy.h"
#include "scheduler/placement/flexgen_policy.h"
#include "scheduler/placement/placement_ledger.h"
#include "scheduler/placement/triphase_policy.h"
#include "scheduler/placement/vllm_policy.h"
#include "scheduler/placement/zero_policy.h"
#include "tests/unit/scheduler/placement_world.h"

namespace triphase {
namespace {

PlacementLimits small_limits() {
  return {.layers = 2,
          .block_tokens = 4,
          .device_pages = 20,
          .host_pages = 40,
          .input_pages = 0,
          .batch_size = 8,
          .prefill_chunk = 8};
}

struct Outcome {
  std::int64_t steps = 0;
  std::int64_t suspensions = 0, offloaded = 0, discarded = 0, max_running = 0;
};

// Runs a job to its end, every action list checked by the checker and by the world.
Outcome run(const PlacementPolicy& policy, const PlacementLimits& limits,
            std::vector<WorldLine> lines) {
  const auto count = static_cast<std::int64_t>(lines.size());
  std::int64_t tokens = 0;
  for (const WorldLine& line : lines) tokens += line.max_tokens;
  PlacementWorld world(limits, std::move(lines));
  Outcome outcome;
  while (!world.finished()) {
    const StepView view = world.view();
    const PlacementActions actions = policy.decide(view);
    validate_actions(view, actions);
    EXPECT_EQ(policy.decide(view), actions) << "a pure function";
    world.step(view, actions);
    if (++outcome.steps > 30 * tokens + 100) throw std::runtime_error("the job does not end");
  }
  EXPECT_EQ(world.finished_lines(), count);
  outcome.suspensions = world.suspensions();
  outcome.offloaded = world.offloaded();
  outcome.discarded = world.discarded();
  outcome.max_running = world.max_running();
  return outcome;
}

std::vector<WorldLine> equal_lines(int count, std::int64_t prompt, std::int64_t max_tokens) {
  return std::vector<WorldLine>(static_cast<std::size_t>(count),
                                {prompt, max_tokens, max_tokens, 0});
}

TEST(DeviceOnly, RunsAsManyAsTheirLongestLengthsAllow) {
  const Outcome outcome = run(DeviceOnlyPolicy(), small_limits(), equal_lines(6, 4, 16));
  EXPECT_EQ(outcome.max_running, 2) << "10 blocks hold two lines of 4 blocks";
  EXPECT_EQ(outcome.suspensions + outcome.offloaded, 0);
}

TEST(Vllm, AdmitsMoreThanFitAtTheEndAndPreempts) {
  for (const SuspendMode mode : {SuspendMode::kDrop, SuspendMode::kSwap}) {
    const Outcome outcome =
        run(VllmPolicy({.preemption = mode}), small_limits(), equal_lines(6, 4, 16));
    EXPECT_GT(outcome.max_running, 2);
    EXPECT_GT(outcome.suspensions, 0);
  }
}

// Five blocks of four tokens, the last one open, in two layers.
TEST(PlacementLedger, SwapsALineWhereTheHostHasRoomForAllOfIt) {
  StepView view{.limits = small_limits(),
                .free_host_pages = 10,
                .running = {{.id = SequenceId(3),
                             .prompt_tokens = 12,
                             .prefill_tokens = 12,
                             .context = 17,
                             .step_tokens = 1,
                             .max_tokens = 24,
                             .device_blocks = 5}}};
  const auto suspended = [&] {
    PlacementLedger ledger(view);
    const Suspend suspend = ledger.swap_if_it_fits(0);
    ledger.apply(suspend);
    EXPECT_EQ(ledger.free_device_pages(), view.running[0].device_blocks * view.limits.layers);
    return suspend.mode;
  };
  EXPECT_EQ(suspended(), SuspendMode::kSwap);
  view.free_host_pages = 9;
  EXPECT_EQ(suspended(), SuspendMode::kDrop);
  view.running[0].host_reserved = 1;
  EXPECT_EQ(suspended(), SuspendMode::kSwap);
  view.running[0].host_reserved = 0;
  view.running[0].host_blocks = 1;
  view.running[0].device_blocks = 4;
  EXPECT_EQ(suspended(), SuspendMode::kSwap) << "what is there needs no room";
}

// Its lines seldom have to: here both tiers are full.
TEST(Triphase, ComputesALineAgainWhereTheHostIsFull) {
  const RunningSequence line{.id = SequenceId(0),
                             .prompt_tokens = 20,
                             .prefill_tokens = 20,
                             .context = 20,
                             .step_tokens = 1,
                             .max_tokens = 24,
                             .device_blocks = 5};
  StepView view{.limits = small_limits(), .running = {line, line}};
  view.running[1].id = SequenceId(1);
  const PhaseSchedule schedule{.p1 = 1000, .p2 = 1000};
  EXPECT_THAT(TriphasePolicy(schedule).decide(view),
              testing::ElementsAre(Suspend{SequenceId(1), SuspendMode::kDrop}));
}

TEST(Accelerate, KeepsOnlyOpenBlocksOnTheDevice) {
  const Outcome outcome = run(AcceleratePolicy(), small_limits(), equal_lines(6, 4, 16));
  EXPECT_EQ(outcome.max_running, 4) << "two passing blocks each beside two of a prefill chunk";
  EXPECT_EQ(outcome.suspensions, 0);
  EXPECT_GE(outcome.offloaded, 6 * 3);
  PlacementLimits device = small_limits();
  device.host_pages = 0;
  EXPECT_EQ(run(AcceleratePolicy(), device, equal_lines(6, 4, 16)).offloaded, 0);
}

TEST(FlexGen, RoundsTheDeviceShareDownToWholeSequences) {
  PlacementLimits limits = small_limits();
  limits.device_pages = 60;
  limits.host_pages = 100;
  const FlexGenPolicy policy({.device_kv_share = 0.5, .gpu_batch = 5, .num_batches = 1});
  PlacementWorld world(limits, equal_lines(5, 4, 16));
  const PlacementActions actions = policy.decide(world.view());
  ASSERT_EQ(actions.size(), 5u);
  int on_device = 0;
  for (const PlacementAction& action : actions) {
    on_device += std::get<Admit>(action).device_blocks > 0 ? 1 : 0;
  }
  EXPECT_EQ(on_device, 2);
  EXPECT_EQ(run(policy, limits, equal_lines(12, 4, 16)).suspensions, 0);
}

TEST(FlexGen, StartsABlockOnlyWhenTheLastHasEnded) {
  PlacementLimits limits = small_limits();
  limits.device_pages = 200;
  std::vector<WorldLine> lines = equal_lines(4, 4, 16);
  lines[0].ends_at = 5;
  const FlexGenPolicy policy({.device_kv_share = 1.0, .gpu_batch = 2, .num_batches = 1});
  PlacementWorld world(limits, lines);
  while (!world.finished()) {
    const StepView view = world.view();
    const PlacementActions actions = policy.decide(view);
    EXPECT_TRUE(actions.empty() || view.running.empty());
    world.step(view, actions);
  }
}

TEST(Triphase, KeepsEverythingOnTheDeviceWhileItFits) {
  const PhaseSchedule schedule{.p1 = 1000, .p2 = 1000};
  EXPECT_EQ(run(TriphasePolicy(schedule), small_limits(), equal_lines(2, 4, 16)).offloaded, 0);
  const Outcome more = run(TriphasePolicy(schedule), small_limits(), equal_lines(4, 4, 24));
  EXPECT_GT(more.offloaded, 0) << "pressure brings Phase II forward";
  EXPECT_EQ(more.suspensions, 0);
  EXPECT_EQ(more.max_running, 3) << "device-only would run one";
}

TEST(Triphase, FollowsItsSchedule) {
  PlacementLimits limits = small_limits();
  limits.device_pages = 200;
  limits.host_pages = 200;
  limits.input_pages = 200;
  const TriphasePolicy policy(
      {.p1 = 8, .p2 = 24, .alpha = 0.5, .beta = 0.5, .window_tokens = 4, .input_tokens = 40});
  PlacementWorld world(limits, equal_lines(1, 8, 48));
  std::int64_t first_host = -1;
  std::int64_t first_recompute = -1;
  while (!world.finished()) {
    const StepView view = world.view();
    const PlacementActions actions = policy.decide(view);
    validate_actions(view, actions);
    world.step(view, actions);
    const StepView after = world.view();
    if (after.running.empty()) break;
    const RunningSequence& line = after.running[0];
    if (line.host_blocks > 0 && first_host < 0) first_host = view.running[0].decode_step();
    if (line.recompute_blocks > 0 && first_recompute < 0) {
      first_recompute = view.running[0].decode_step();
    }
    if (view.running.empty()) continue;
    const std::int64_t away = line.away_blocks() * 4;
    EXPECT_LE(away, view.running[0].context / 2);
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
  EXPECT_EQ(outcome.suspensions, 0);
  EXPECT_GE(outcome.offloaded, 6 * 3);
  // Where the other mode refuses.
  const JobView job{.layers = 10, .block_tokens = 4, .batch_size = 8, .longest_tokens = 10000};
  const StaticPlacement placement = policy.start(job);
  EXPECT_EQ(placement.streamed_layers, 10);
  EXPECT_TRUE(placement.host_tier && placement.host_always);
  EXPECT_EQ(placement.host_kv, HostKvUse::kCpuAttention);
}

TEST(Checker, RefusesWhatOverCommits) {
  StepView view{.limits = small_limits(),
                .free_device_pages = 2,
                .free_host_pages = 2,
                .running = {{.id = SequenceId(7),
                             .prompt_tokens = 8,
                             .context = 9,
                             .step_tokens = 1,
                             .max_tokens = 20,
                             .device_blocks = 3}},
                .waiting = {{.prompt_tokens = 4, .max_tokens = 8}}};
  EXPECT_NO_THROW(validate_actions(view, {}));
  EXPECT_NO_THROW(validate_actions(view, {Offload{SequenceId(7), 0, 1}, Admit{0, 1}}));
  EXPECT_THROW(validate_actions(view, {Admit{0, 2}}), Error) << "two blocks, one is free";
  EXPECT_THROW(validate_actions(view, {Admit{0, 1}, Offload{SequenceId(7), 0, 1}}), Error);
  EXPECT_THROW(validate_actions(view, {Offload{SequenceId(7), 0, 2}}), Error) << "host is full";
  EXPECT_THROW(validate_actions(view, {Offload{SequenceId(7), 1, 2}}), Error) << "not the oldest";
  EXPECT_THROW(validate_actions(view, {Offload{SequenceId(8), 0, 1}}), Error) << "unknown";
  EXPECT_THROW(validate_actions(view, {Discard{SequenceId(7), 0, 1}}), Error) << "not on the host";
  EXPECT_THROW(validate_actions(view, {Suspend{SequenceId(7), SuspendMode::kDrop}}), Error)
      << "nothing would run";
  view.free_host_pages = 40;
  EXPECT_THROW(validate_actions(view, {Offload{SequenceId(7), 0, 3}}), Error) << "open block";
  view.limits.staging_tokens = 7;
  EXPECT_NO_THROW(validate_actions(view, {Offload{SequenceId(7), 0, 1}}));
  EXPECT_THROW(validate_actions(view, {Offload{SequenceId(7), 0, 2}}), Error) << "staging";
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
  limits.device_pages = pick(4, 60) * limits.layers + pick(0, limits.layers - 1);
  limits.host_pages = pick(0, 3) == 0 ? 0 : pick(1, 120) * limits.layers;
  limits.input_pages = pick(0, 1) * pick(1, 60) * limits.layers;
  limits.batch_size = pick(1, 12);
  limits.prefill_chunk = pick(1, 3) * limits.block_tokens + pick(0, 3);
  limits.touched_share = pick(0, 2) == 0 ? 0.2 : 1.0;
  limits.staging_tokens = pick(0, 1) * pick(2, 200) * limits.block_tokens;
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
          VllmOptions{.preemption = pick(0, 2) == 0 ? SuspendMode::kDrop : SuspendMode::kSwap});
      break;
    case 3:
      result.policy = std::make_unique<AcceleratePolicy>();
      break;
    case 4: {
      FlexGenOptions options{
          .device_kv_share = real(), .gpu_batch = pick(0, 4), .num_batches = pick(1, 3)};
      limits.staging_group = options.gpu_batch;
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
  const std::int64_t longest = std::min<std::int64_t>(result.policy->longest_line(limits), 120);
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
  std::int64_t suspensions = 0;
  for (unsigned seed = 0; seed < 4000; ++seed) {
    std::mt19937 random(seed);
    const Case job = random_case(random);
    if (job.lines.empty()) continue;
    try {
      const Outcome outcome = run(*job.policy, job.limits, job.lines);
      offloaded += outcome.offloaded;
      discarded += outcome.discarded;
      suspensions += outcome.suspensions;
    } catch (const std::exception& error) {
      FAIL() << "seed " << seed << ", " << job.policy->name() << ": " << error.what();
    }
  }
  EXPECT_GT(offloaded, 10'000);
  EXPECT_GT(discarded, 100);
  EXPECT_GT(suspensions, 100);
}

}  // namespace
}  // namespace triphase
