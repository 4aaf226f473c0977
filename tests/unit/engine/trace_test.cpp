// What a trace says about a run: lanes nest, transfers overlap compute where they are prefetched
// and nowhere else, bytes are the transfer engine's, and phases are where the blocks are.

#include "base/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "scheduler/placement/accelerate_policy.h"
#include "scheduler/placement/flexgen_policy.h"
#include "scheduler/placement/triphase_policy.h"
#include "scheduler/placement/vllm_policy.h"
#include "scheduler/placement/zero_policy.h"
#include "tests/support/engine_runs.h"
#include "tests/support/tiny_model.h"

namespace triphase {
namespace {

// Keeps everything a Trace hands over.
class KeptTrace {
 public:
  KeptTrace() {
    trace_.set_sink([this](std::vector<TraceEvent>& events) {
      events_.insert(events_.end(), events.begin(), events.end());
    });
  }
  [[nodiscard]] Trace* trace() { return &trace_; }
  [[nodiscard]] const std::vector<TraceEvent>& events() {
    trace_.flush();
    return events_;
  }

  // Spans in order of their beginning, the longer first.
  [[nodiscard]] std::vector<TraceEvent> lane(TraceLane lane) {
    std::vector<TraceEvent> found;
    for (const TraceEvent& event : events()) {
      if (event.kind == TraceEvent::Kind::kSpan && event.lane == lane) found.push_back(event);
    }
    std::ranges::stable_sort(found, [](const TraceEvent& a, const TraceEvent& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
    return found;
  }
  [[nodiscard]] std::vector<TraceEvent> lines(TraceEvent::Kind kind, std::int64_t line) {
    std::vector<TraceEvent> found;
    for (const TraceEvent& event : events()) {
      if (event.kind == kind && event.request == line) found.push_back(event);
    }
    return found;
  }

 private:
  Trace trace_;
  std::vector<TraceEvent> events_;
};

std::int64_t value_of(const TraceEvent& event, std::string_view name) {
  for (const TraceValue& value : event.values) {
    if (value.name != nullptr && value.name == name) return value.value;
  }
  return 0;
}

std::int64_t sum_of(const std::vector<TraceEvent>& events, std::string_view name) {
  std::int64_t sum = 0;
  for (const TraceEvent& event : events) sum += value_of(event, name);
  return sum;
}

// Every span lies within one before it or begins after it ended. `spans` as of KeptTrace::lane().
void expect_nested(const std::vector<TraceEvent>& spans) {
  std::vector<TraceEvent> open;
  for (const TraceEvent& span : spans) {
    ASSERT_LE(span.begin, span.end) << span.name;
    while (!open.empty() && open.back().end <= span.begin) open.pop_back();
    if (!open.empty()) {
      ASSERT_LE(span.end, open.back().end) << span.name << " in " << open.back().name;
    }
    open.push_back(span);
  }
}

bool overlap(const TraceEvent& a, const TraceEvent& b) {
  return a.begin < b.end && b.begin < a.end;
}

// Pairs of one span of each list that are under way together.
std::int64_t overlaps(const std::vector<TraceEvent>& a, const std::vector<TraceEvent>& b) {
  std::int64_t count = 0;
  for (const TraceEvent& one : a) {
    count += std::ranges::count_if(b, [&](const TraceEvent& other) { return overlap(one, other); });
  }
  return count;
}

// Runs the requests with a trace of everything.
void run_traced(TinyModel& model, const std::vector<Request>& requests, KeptTrace& kept) {
  model.engine().set_trace(kept.trace());
  model.model().set_trace(kept.trace());
  model.transfers().set_trace(kept.trace());
  (void)run_all(model.engine(), requests);
  model.engine().finish_trace();
  model.transfers().set_trace(nullptr);
}

std::vector<Request> plain_requests(std::size_t count, std::int64_t prompt, std::int64_t output) {
  std::mt19937 random(5);
  std::vector<Request> requests;
  for (std::size_t i = 0; i < count; ++i) {
    requests.push_back(request(i, random_tokens(random, static_cast<std::size_t>(prompt)), output));
    requests.back().sampling.ignore_eos = true;
  }
  return requests;
}

// Arithmetic alone: what must not run while an unhidden transfer does.
std::vector<TraceEvent> arithmetic(KeptTrace& kept) {
  static const std::set<std::string_view> kNames = {"qkv",    "append", "choose", "attend",
                                                    "output", "mlp",    "head",   "embed"};
  std::vector<TraceEvent> found;
  for (const TraceEvent& event : kept.lane(TraceLane::kCompute)) {
    if (kNames.contains(event.name)) found.push_back(event);
  }
  return found;
}

struct Case {
  std::string name;
  std::shared_ptr<const PlacementPolicy> policy;
  std::int64_t host_blocks = 0;
  std::int64_t device_blocks = 0;
  std::int64_t streamed_layers = 0;
};

TinyModelOptions options_of(const Case& test) {
  TinyModelOptions options;
  options.batch_size = 4;
  options.kv_blocks = test.device_blocks;
  options.host_blocks = test.host_blocks;
  options.staging_blocks = test.host_blocks == 0 ? 0 : 64;
  options.streamed_layers = test.streamed_layers;
  options.policy = test.policy;
  return options;
}

class TraceOfPolicy : public testing::TestWithParam<Case> {};

TEST_P(TraceOfPolicy, LanesNestAndBytesAreThoseThatMoved) {
  TinyModel model(options_of(GetParam()));
  KeptTrace kept;
  const std::vector<Request> requests = mixed_requests(3, 20);
  run_traced(model, requests, kept);
  for (int lane = 0; lane < kTraceLanes; ++lane) {
    expect_nested(kept.lane(static_cast<TraceLane>(lane)));
  }
  EXPECT_EQ(kept.trace()->lost(), 0U);

  const std::vector<std::pair<Lane, TraceLane>> links = {{Lane::kToDevice, TraceLane::kToDevice},
                                                         {Lane::kToHost, TraceLane::kToHost}};
  for (const auto& [link, lane] : links) {
    const LaneStats stats = model.transfers().stats(link);
    const std::vector<TraceEvent> spans = kept.lane(lane);
    EXPECT_EQ(spans.size(), stats.transfers);
    EXPECT_EQ(sum_of(spans, "bytes"), static_cast<std::int64_t>(stats.bytes));
    EXPECT_EQ(sum_of(spans, "records"), static_cast<std::int64_t>(stats.records));
  }

  const EngineStats& stats = model.engine().stats();
  const std::vector<TraceEvent> steps = kept.lane(TraceLane::kSteps);
  EXPECT_EQ(
      std::ranges::count_if(steps, [](const TraceEvent& e) { return value_of(e, "requests") > 0; }),
      static_cast<std::int64_t>(stats.steps));
  const std::int64_t prefill_rows = sum_of(steps, "prefill_rows");
  const std::int64_t decode_rows = sum_of(steps, "decode_rows");
  EXPECT_EQ(decode_rows, static_cast<std::int64_t>(stats.decoded_tokens));
  // Nobody computes a request's last token.
  EXPECT_EQ(prefill_rows + decode_rows,
            static_cast<std::int64_t>(stats.computed_prompt_tokens + stats.recomputed_tokens +
                                      stats.generated_tokens - requests.size()));
  if (model.engine().placement().stats().drops == 0) {
    EXPECT_EQ(prefill_rows, static_cast<std::int64_t>(stats.computed_prompt_tokens));
  }

  // Phases cover the job without gaps, and agree with what the engine counted.
  std::map<std::string_view, std::int64_t> phase_steps;
  for (const TraceEvent& span : kept.lane(TraceLane::kPhases)) {
    phase_steps[span.name] += value_of(span, "steps");
  }
  for (const Phase phase : {Phase::kOne, Phase::kTwo, Phase::kThree}) {
    EXPECT_EQ(phase_steps[phase_name(phase)],
              static_cast<std::int64_t>(stats.phases[static_cast<std::size_t>(phase) - 1].steps));
  }
  for (const Request& request : requests) {
    const auto line = static_cast<std::int64_t>(request.index);
    const auto lives = kept.lines(TraceEvent::Kind::kRequest, line);
    ASSERT_EQ(lives.size(), 1U) << line;
    TraceEvent::Clock::duration covered{};
    for (const TraceEvent& phase : kept.lines(TraceEvent::Kind::kRequestPhase, line)) {
      EXPECT_GE(phase.begin, lives[0].begin);
      EXPECT_LE(phase.end, lives[0].end);
      covered += phase.end - phase.begin;
    }
    EXPECT_LE(covered, lives[0].end - lives[0].begin);
  }
}

// A busy machine may let the lane's thread wait for as long as the arithmetic takes: once is enough
// for overlap to exist, but never may it without prefetching.
int attempts(bool prefetch) { return prefetch ? 20 : 1; }

class TraceOfFetching : public testing::TestWithParam<Case> {};

TEST_P(TraceOfFetching, TransfersOverlapComputeOnlyWhereTheyAreFetchedAhead) {
  const Case& test = GetParam();
  ModelConfig config = tiny_config();
  config.layers = 5;
  for (const bool prefetch : {true, false}) {
    TinyModelOptions options = options_of(test);
    options.prefetch = prefetch;
    if (test.streamed_layers > 0) options.streamed_layers = 4;
    // Slow enough that a transfer cannot be over before the compute that it should overlap.
    options.link = EmulatedLink{.bytes_per_second = 1e8, .seconds_per_record = 20e-6};
    std::int64_t found = 0;
    for (int attempt = 0; attempt < attempts(prefetch) && found == 0; ++attempt) {
      TinyModel model(options, config);
      KeptTrace kept;
      run_traced(model, plain_requests(6, 40, 10), kept);
      std::vector<TraceEvent> links = kept.lane(TraceLane::kToDevice);
      ASSERT_GT(links.size(), 20U);
      found = static_cast<std::int64_t>(overlaps(links, arithmetic(kept)));
    }
    EXPECT_EQ(found > 0, prefetch) << test.name;
  }
}

std::vector<TraceEvent> named(KeptTrace& kept, std::string_view name) {
  std::vector<TraceEvent> found;
  for (const TraceEvent& event : kept.lane(TraceLane::kCompute)) {
    if (std::string_view(event.name) == name) found.push_back(event);
  }
  return found;
}

// Of a prompt's chunk whose logits nobody wants the last layer leaves K and V alone.
TEST(TraceOfSteps, TheLastLayerComputesWhatIsRead) {
  ModelConfig config = tiny_config();
  config.layers = 3;
  TinyModelOptions options;
  options.prefill_chunk = 16;
  TinyModel model(options, config);
  KeptTrace kept;
  run_traced(model, plain_requests(1, 40, 3), kept);
  constexpr std::size_t kWholeSteps = 3;   // a chunk of 8 rows, two decoded tokens
  constexpr std::size_t kOtherChunks = 2;  // of 16 rows
  EXPECT_EQ(named(kept, "qkv").size(), 3 * (kWholeSteps + kOtherChunks));
  for (const std::string_view name : {"attend", "output", "mlp"}) {
    EXPECT_EQ(named(kept, name).size(), 3 * kWholeSteps + 2 * kOtherChunks) << name;
  }
}

// The link brings the next step's first layer beside the head and the sampling of this one, where
// no weights and no blocks that come to stay could do so.
TEST(TraceOfSteps, WhatTheNextStepReadsIsFetchedWhileTheStepEnds) {
  ModelConfig config = tiny_config();
  config.layers = 5;
  for (const bool prefetch : {true, false}) {
    TinyModelOptions options = options_of(
        {"accelerate", std::make_shared<AcceleratePolicy>(AccelerateOptions{}), 150, 30});
    options.prefetch = prefetch;
    options.link = EmulatedLink{.bytes_per_second = 2e6, .seconds_per_record = 20e-6};
    std::int64_t across = 0;
    std::int64_t beside = 0;
    for (int attempt = 0; attempt < attempts(prefetch) && (across == 0 || beside == 0); ++attempt) {
      TinyModel model(options, config);
      KeptTrace kept;
      run_traced(model, plain_requests(4, 40, 8), kept);
      const std::vector<TraceEvent> steps = kept.lane(TraceLane::kSteps);
      for (const TraceEvent& fetch : kept.lane(TraceLane::kToDevice)) {
        across += std::ranges::count_if(steps, [&](const TraceEvent& step) {
          return step.begin < fetch.begin && fetch.begin < step.end && step.end < fetch.end;
        });
      }
      beside += overlaps(kept.lane(TraceLane::kToDevice), named(kept, "head"));
      const std::int64_t announced = sum_of(kept.lane(TraceLane::kCompute), "blocks_for_next_step");
      EXPECT_EQ(announced, static_cast<std::int64_t>(model.kv().prefetched().use_so_far().brought));
      EXPECT_EQ(announced > 0, prefetch);
    }
    EXPECT_EQ(beside > 0, prefetch);
    EXPECT_EQ(across > 0, prefetch);
  }
}

// Where KV or weights cross the link while a step computes.
std::vector<Case> fetching_cases() {
  return {
      {"triphase",
       std::make_shared<TriphasePolicy>(
           PhaseSchedule{.p1 = 3, .p2 = 1 << 30, .alpha = 0.7, .window_tokens = 4}),
       150, 60},
      {"accelerate", std::make_shared<AcceleratePolicy>(AccelerateOptions{}), 150, 30},
      {"flexgen",
       std::make_shared<FlexGenPolicy>(
           FlexGenOptions{.device_kv_share = 0.0, .device_weight_share = 0.5}),
       200, 30},
      {"zero", std::make_shared<ZeroPolicy>(ZeroOptions{}), 0, 60, 2},
  };
}

std::vector<Case> all_cases() {
  std::vector<Case> cases = fetching_cases();
  cases.push_back({"vllm_drop", std::make_shared<VllmPolicy>(VllmOptions{}), 0, 15});
  cases.push_back({"vllm_swap",
                   std::make_shared<VllmPolicy>(VllmOptions{.preemption = PreemptMode::kSwap}), 60,
                   15});
  cases.push_back({"device_only", std::make_shared<DeviceOnlyPolicy>(), 0, 60});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Policies, TraceOfPolicy, testing::ValuesIn(all_cases()),
                         [](const auto& param) { return param.param.name; });
INSTANTIATE_TEST_SUITE_P(Policies, TraceOfFetching, testing::ValuesIn(fetching_cases()),
                         [](const auto& param) { return param.param.name; });

TEST(Phases, AUniformBatchHasOneBoundary) {
  const Case test{"triphase",
                  std::make_shared<TriphasePolicy>(
                      PhaseSchedule{.p1 = 8, .p2 = 1 << 30, .alpha = 0.9, .window_tokens = 4}),
                  150, 100};
  TinyModelOptions options = options_of(test);
  options.prefill_chunk = 200;  // all prompts in one step
  TinyModel model(options);
  KeptTrace kept;
  run_traced(model, plain_requests(4, 40, 20), kept);
  const std::vector<PhaseBoundary> met = model.engine().placement().phases().boundaries();
  ASSERT_EQ(met.size(), 1U);
  EXPECT_EQ(met[0], (PhaseBoundary{Phase::kTwo, 4, 9, 9, 48, 48, 8, 8}));
  const std::vector<TraceEvent> phases = kept.lane(TraceLane::kPhases);
  ASSERT_EQ(phases.size(), 2U);
  EXPECT_STREQ(phases[0].name, "Phase I");
  EXPECT_STREQ(phases[1].name, "Phase II");
  EXPECT_EQ(value_of(phases[1], "first_step"), met[0].first_step);
  for (std::int64_t line = 0; line < 4; ++line) {
    const auto own = kept.lines(TraceEvent::Kind::kRequestPhase, line);
    ASSERT_EQ(own.size(), 2U);
    EXPECT_EQ(value_of(own[1], "context"), met[0].least_context);
  }
}

TEST(Phases, LinesOfARaggedBatchHaveTheirOwn) {
  const Case test{"triphase",
                  std::make_shared<TriphasePolicy>(
                      PhaseSchedule{.p1 = 8, .p2 = 1 << 30, .alpha = 0.9, .window_tokens = 4}),
                  150, 100};
  TinyModelOptions options = options_of(test);
  options.prefill_chunk = 24;
  TinyModel model(options);
  KeptTrace kept;
  std::mt19937 random(9);
  std::vector<Request> requests;
  for (std::size_t i = 0; i < 9; ++i) {
    // Every third line ends before p1.
    requests.push_back(request(i, random_tokens(random, 20 + 9 * i), i % 3 == 2 ? 5 : 20));
    requests.back().sampling.ignore_eos = true;
  }
  run_traced(model, requests, kept);
  const std::vector<PhaseBoundary> met = model.engine().placement().phases().boundaries();
  ASSERT_EQ(met.size(), 1U);
  EXPECT_EQ(met[0].sequences, 6);
  EXPECT_LT(met[0].first_step, met[0].last_step);
  EXPECT_EQ(met[0].least_context, 28) << "line 0: 20 tokens and p1";
  EXPECT_EQ(met[0].most_context, 20 + 9 * 7 + 8);
  EXPECT_EQ(met[0].least_generated, 8);
  EXPECT_EQ(met[0].most_generated, 8);
  for (const Request& request : requests) {
    const auto own =
        kept.lines(TraceEvent::Kind::kRequestPhase, static_cast<std::int64_t>(request.index));
    EXPECT_EQ(own.size(), request.index % 3 == 2 ? 1U : 2U);
  }
}

}  // namespace
}  // namespace triphase
