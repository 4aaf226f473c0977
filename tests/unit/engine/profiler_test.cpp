#include "runtime/profile/profiler.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "base/error.h"
#include "base/samples.h"
#include "runtime/calibrate/measure_miss_rate.h"
#include "runtime/plan/config_costs.h"
#include "runtime/plan/profile_file.h"
#include "runtime/profile/model_work.h"
#include "scheduler/cost/step_cost.h"
#include "scheduler/planner/planner.h"
#include "scheduler/simulator/simulation_policies.h"
#include "tests/support/paths.h"
#include "tests/support/tiny_model.h"
#include "tests/unit/runtime/json_schema.h"

namespace triphase {
namespace {

using ::testing::Contains;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Samples, OutliersDoNotMoveTheMedian) {
  const SampleSummary clean = summarize_samples({4, 1, 3, 2, 5});
  EXPECT_DOUBLE_EQ(clean.median, 3.0);
  EXPECT_DOUBLE_EQ(clean.spread, 1.0);
  EXPECT_EQ(clean.dropped, 0U);
  const SampleSummary disturbed = summarize_samples({4, 1, 3, 2, 5, 1000, 900});
  EXPECT_EQ(disturbed.dropped, 0U) << "two of seven are no outliers: the quartiles reach them";
  const SampleSummary one = summarize_samples({4, 1, 3, 2, 5, 3, 3, 2, 4, 1000});
  EXPECT_EQ(one.dropped, 1U);
  EXPECT_EQ(one.kept, 9U);
  EXPECT_DOUBLE_EQ(one.median, 3.0);
  const SampleSummary few = summarize_samples({1, 1, 50});
  EXPECT_EQ(few.dropped, 0U);
  EXPECT_DOUBLE_EQ(few.median, 1.0);
  EXPECT_DOUBLE_EQ(summarize_samples({7}).median, 7.0);
  EXPECT_DOUBLE_EQ(quantile({0, 10}, 0.25), 2.5);
}

// Counts what is asked of it. Its clock moves on by what a cell costs, and by a stall now and then.
class FakeWork final : public GridWork {
 public:
  explicit FakeWork(double limit, double milliseconds_per_unit = 0.0)
      : limit_(limit), milliseconds_(milliseconds_per_unit) {}
  [[nodiscard]] bool possible(double x, double y) const override { return y <= limit_ * x; }
  void begin(double x, double y) override {
    EXPECT_TRUE(possible(x, y));
    EXPECT_FALSE(open_);
    open_ = true;
    cell_ = {x, y};
    now_ += setup_seconds;
    ++begins;
  }
  void before_run() override {
    EXPECT_FALSE(ready_);
    ready_ = true;
    now_ += before_run_seconds;
  }
  void run() override {
    EXPECT_TRUE(open_);
    EXPECT_TRUE(ready_) << "a run that nothing came before";
    ready_ = false;
    ++runs_[cell_];
    now_ += kShortestCall + milliseconds_ * 1e-3 * cell_.first;
    if (stall_every > 0 && ++calls_ % stall_every == 0) now_ += kStall;
  }
  void end() override { open_ = false; }

  [[nodiscard]] const std::map<std::pair<double, double>, int>& runs() const { return runs_; }
  [[nodiscard]] const std::vector<double>& shares() const { return shares_; }
  GridMeasurement measure(const std::vector<double>& x, const std::vector<double>& y,
                          double seconds) {
    return measure_grid(
        *this, x, y, seconds, [this](double share) { shares_.push_back(share); },
        [this] { return now_; });
  }

  static constexpr double kShortestCall = 1e-5;  // seconds
  static constexpr double kStall = 0.3;
  int stall_every = 0;  // calls
  double setup_seconds = 0.0;
  double before_run_seconds = 0.0;
  int begins = 0;

 private:
  double limit_;
  double milliseconds_;
  double now_ = 0.0;
  int calls_ = 0;
  bool open_ = false;
  bool ready_ = false;
  std::pair<double, double> cell_;
  std::map<std::pair<double, double>, int> runs_;
  std::vector<double> shares_;  // of the time that was spent, as reported
};

TEST(GridMeasurement, MeasuresEveryCellInTwoRounds) {
  FakeWork work(1e9);
  const GridMeasurement measured = work.measure({1, 2, 4}, {0, 8}, 20.0);
  EXPECT_THAT(measured.table.x, ElementsAre(1, 2, 4));
  EXPECT_THAT(measured.table.y, ElementsAre(0, 8));
  EXPECT_EQ(table_problem(measured.table), "");
  EXPECT_EQ(measured.table.spread.size(), 6U);
  EXPECT_EQ(measured.repeatability.cells, 6);
  EXPECT_EQ(measured.repeatability.filled, 0);
  // Every cell of the warm-up and of three rounds.
  EXPECT_EQ(work.shares().size(), 24U);
  EXPECT_TRUE(std::ranges::is_sorted(work.shares()));
  EXPECT_LE(work.shares().back(), 1.0);
  // A warm-up for the whole grid, then in each round another one and at least three samples.
  for (const auto& [cell, runs] : work.runs()) EXPECT_GE(runs, 9);
  EXPECT_GE(measured.repeatability.samples + measured.repeatability.dropped, 36);
  for (const double seconds : measured.table.seconds) {
    EXPECT_NEAR(seconds, FakeWork::kShortestCall, 1e-12);
  }
}

TEST(GridMeasurement, ContinuesWhatTheModelCannotReach) {
  FakeWork work(/*limit=*/8);
  const GridMeasurement measured = work.measure({1, 4}, {0, 8, 32, 128}, 20.0);
  EXPECT_THAT(measured.table.y, ElementsAre(0, 8, 32)) << "nothing reaches 128";
  EXPECT_EQ(measured.repeatability.cells, 5);
  EXPECT_EQ(measured.repeatability.filled, 1);
  const std::vector<double>& seconds = measured.table.seconds;
  EXPECT_DOUBLE_EQ(seconds[2], seconds[1] + std::max(seconds[5] - seconds[4], 0.0));
  EXPECT_FALSE(work.runs().contains({1.0, 32.0}));
}

TEST(GridMeasurement, AxesStopWhereTheTimeEnds) {
  FakeWork work(1e9, /*milliseconds_per_unit=*/1.0);
  const GridMeasurement measured = work.measure({1, 2, 4, 8, 16, 32, 64, 128, 256, 512}, {}, 0.1);
  EXPECT_GE(measured.table.x.size(), 2U);
  EXPECT_LE(measured.table.x.back(), 32.0) << "eight calls of 64 ms do not fit 100 ms";
  EXPECT_TRUE(measured.table.y.empty());
}

TEST(GridMeasurement, TimesTheWorkAlone) {
  FakeWork work(1e9);
  work.before_run_seconds = 1.0;
  work.setup_seconds = 2.0;
  for (const double seconds : work.measure({1, 2}, {}, 200.0).table.seconds) {
    EXPECT_NEAR(seconds, FakeWork::kShortestCall, 1e-12);
  }
}

// A value begins in the warm-up and in each of three rounds.
TEST(GridMeasurement, WhatComesBeforeTheRunsTakesTimeToo) {
  FakeWork cheap(1e9);
  EXPECT_EQ(cheap.measure({1, 2, 3, 4, 5, 6}, {}, 10.0).table.x.size(), 6U);
  FakeWork dear(1e9);
  dear.setup_seconds = 1.0;
  EXPECT_THAT(dear.measure({1, 2, 3, 4, 5, 6}, {}, 10.0).table.x, ElementsAre(1, 2));
  EXPECT_EQ(dear.begins, 6 + 3 * 2) << "after the warm-up 8 seconds hold two values' rounds";
}

TEST(Verdict, SaysWhatTheProfileIsGoodFor) {
  MeasuredProfile measured;
  measured.measure_seconds = 60.0;
  measured.tables = {{"decode", {.cells = 14, .rounds = 0.02}},
                     {"prefill", {.cells = 10, .rounds = 0.03}},
                     {"h2d", {.cells = 8, .rounds = 0.12}}};
  EXPECT_EQ(verdict(measured, "p.json"),
            "p.json: 32 cells of 3 tables measured in 60.0 s after loading for 0.0 s; repeated "
            "rounds lie 3 % apart (good; h2d at worst, 12 %): use it with --profile p.json (run, "
            "plan, simulate)");
  for (ProfiledTable& table : measured.tables) table.repeatability.rounds *= 10.0;
  EXPECT_NE(
      verdict(measured, "p.json").find("(poor; h2d at worst, 120 %): measure again on an idle"),
      std::string::npos);
}

// A prompt's chunk among single rows: the largest work is sampled once a round, so that it stays.
TEST(GridMeasurement, KeepsDearCellsWithFewerSamples) {
  FakeWork work(1e9, /*milliseconds_per_unit=*/0.25);
  const GridMeasurement measured = work.measure({1, 4, 16, 64, 256}, {0, 1}, 1.4);
  EXPECT_EQ(measured.table.x.back(), 256.0);
  EXPECT_LT(work.runs().at({256.0, 0.0}), 9);
  EXPECT_GE(work.runs().at({256.0, 0.0}), 4);
  EXPECT_GE(work.runs().at({1.0, 0.0}), 9);
}

// However little of the time other programs leave, every cell is sampled in every round.
TEST(GridMeasurement, SamplesEveryRoundOnABusyMachine) {
  FakeWork work(1e9, /*milliseconds_per_unit=*/0.25);
  for (const int stall_every : {3, 2, 1}) {
    work.stall_every = stall_every;
    const GridMeasurement measured = work.measure({1, 4, 16}, {0, 1, 2}, 0.5);
    EXPECT_GE(measured.table.x.size(), 2U);
    EXPECT_GE(measured.table.y.size(), 2U);
    EXPECT_EQ(table_problem(measured.table), "");
    EXPECT_GE(measured.repeatability.samples + measured.repeatability.dropped,
              3 * measured.repeatability.cells);
  }
}

void expect_schema(const std::string& text) {
  std::ostringstream schema_text;
  schema_text << std::ifstream(source_path("docs/schemas/profile.schema.json")).rdbuf();
  JsonProblem problem;
  const auto schema = parse_json(schema_text.str(), problem);
  ASSERT_TRUE(schema.has_value());
  EXPECT_EQ(testing::schema_violation(*schema, *parse_json(text, problem), *schema), "");
}

ModelBundle tiny_bundle() {
  ModelBundle bundle;
  bundle.config = tiny_config();
  bundle.weights_dtype = DType::kF16;
  bundle.weight_bytes = weight_bytes(bundle.config, DType::kF16);
  bundle.identity = {.path = "tiny", .fingerprint = "xxh3:0123456789abcdef", .tokenizer = ""};
  return bundle;
}

class MeasuredTinyModel : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    RunOptions options;
    options.weights.random = true;
    options.machine.device_memory = 1 << 20;
    options.machine.host_memory = 64 << 20;
    options.machine.emulated_link =
        EmulatedLink{.bytes_per_second = 1e9, .seconds_per_record = 1e-6};
    const auto backend = Backend::open("cpu", 1);
    Log log({.verbosity = -1});
    Progress progress(log, ProgressMode::kOff);
    const ModelBundle model = tiny_bundle();
    measured_ = new MeasuredProfile(measure_profile(options, {.seconds = 0.5, .batch_size = 8},
                                                    {model, *backend, progress, log}));
  }
  static void TearDownTestSuite() {
    delete measured_;
    measured_ = nullptr;
  }
  static const HardwareProfile& profile() { return measured_->profile; }

  static MeasuredProfile* measured_;
};
MeasuredProfile* MeasuredTinyModel::measured_ = nullptr;

TEST_F(MeasuredTinyModel, SaysWhatWasMeasured) {
  EXPECT_TRUE(profile().measured);
  EXPECT_TRUE(profile().emulated);
  EXPECT_EQ(profile().link, "emulated: 1 GB/s, 1 us for each record");
  EXPECT_THAT(profile().device, HasSubstr("1 threads"));
  EXPECT_EQ(profile().machine(), profile().device + "; " + profile().link);
  EXPECT_EQ(profile().device_memory, 1U << 20);
  EXPECT_EQ(profile().shape.layers, 2);
  EXPECT_EQ(profile().model_fingerprint, "xxh3:0123456789abcdef");
  EXPECT_EQ(measured_->tables.size(), 9U);
  for (const ProfiledTable& table : measured_->tables) {
    EXPECT_THAT(profile().notes, Contains(HasSubstr(table.name + ": ")));
  }
  EXPECT_THAT(profile().notes, Contains(HasSubstr("rounds")));
}

TEST_F(MeasuredTinyModel, EveryTimeIsPositiveAndEveryTableWhole) {
  for (std::size_t which = 0; which < kCostTables; ++which) {
    const GridTable& table = profile().tables[which];
    const CostTableInfo& info = cost_table_info(static_cast<CostTable>(which));
    if (table.empty()) {
      EXPECT_FALSE(info.required) << info.name;
      continue;
    }
    EXPECT_EQ(table_problem(table), "") << info.name;
    EXPECT_GE(table.x.size(), 2U) << info.name;
    EXPECT_EQ(table.spread.size(), table.seconds.size()) << info.name;
    for (std::size_t at = 0; at < table.seconds.size(); ++at) {
      // No tokens to quantize take no time, by definition.
      if (table.y.empty() && table.x[at] == 0.0) continue;
      EXPECT_GT(table.seconds[at], 0.0) << info.name << " " << at;
    }
  }
  // A paced link takes at least what its rate and its records cost.
  const GridTable& gather = profile().table(CostTable::kGather);
  for (std::size_t i = 0; i < gather.x.size(); ++i) {
    for (std::size_t j = 0; j < gather.y.size(); ++j) {
      const double least = gather.y[j] * (gather.x[i] * 1e-9 + 1e-6);
      // The link's clock makes up for what a sleep overshot, up to 300 us.
      EXPECT_GE(gather.seconds[i * gather.y.size() + j], least - 300e-6);
    }
  }
}

// Every method that needs no fixed context: with a key of its own for each query head, so that
// SparQ's sums of V are kept, and INT8 blocks that begin and end within the steps.
TEST(MeasuredMethods, AreDecodedFromMadeUpPrompts) {
  RunOptions options;
  options.weights.random = true;
  options.machine.device_memory = 1 << 20;
  options.machine.host_memory = 64 << 20;
  const auto backend = Backend::open("cpu", 1);
  Log log({.verbosity = -1});
  Progress progress(log, ProgressMode::kOff);
  ModelBundle model = tiny_bundle();
  model.config.kv_heads = model.config.heads;
  model.config.max_positions = 320;
  model.weight_bytes = weight_bytes(model.config, DType::kF16);
  int methods = 0;
  for (const std::string_view name : attention_names()) {
    AttentionOptions attention;
    attention.kind = attention_from_name(name);
    if (!attention.sparse() || needs_fixed_context(attention)) continue;
    SCOPED_TRACE(name);
    set_keep_ratio(attention, 0.2);
    const MeasuredProfile measured =
        measure_profile(options, {.seconds = 0.05, .batch_size = 4, .attention = attention},
                        {model, *backend, progress, log});
    ++methods;
    const HardwareProfile& profile = measured.profile;
    ASSERT_EQ(profile.methods.size(), 1U);
    EXPECT_EQ(profile.method_costs(attention), &profile.methods.front());
    for (const GridTable* table :
         {&profile.methods.front().choosing, &profile.methods.front().choosing_int8}) {
      EXPECT_EQ(table_problem(*table), "");
      EXPECT_GE(table->x.size(), 2U);
      EXPECT_GE(table->y.size(), 2U);
      EXPECT_LE(table->y.back(), 4.0 * (320 - DecodeWork::kGrowth));
    }
    EXPECT_EQ(measured.tables.size(), 11U);
    EXPECT_EQ(measured.tables[6].name, fmt::format("choosing_int8 under {}", name));
    EXPECT_EQ(parse_profile(profile_to_json(profile), "p.json"), profile);
    EXPECT_TRUE(CostModel(profile, attention).knows_method());
  }
  EXPECT_EQ(methods, 9);
}

// Dense steps take 1 + b + t/10 seconds. A quarter of contexts that grow from 84 and 184 to 116 and
// 216 tokens is 25 and 50 tokens on average; of both sequences together 42 and 92 tokens grow to 58
// and 108, which are 14 and 27 for each.
TEST(MeasuredMethods, ChoosingIsWhatAStepTakesBesideADenseOne) {
  AttentionOptions quarter;
  quarter.kind = attention_from_name("swa");
  set_keep_ratio(quarter, 0.25);
  const GridTable dense{.x = {1, 3}, .y = {0, 100}, .seconds = {2, 12, 4, 14}};
  GridTable steps{.x = {1, 2}, .y = {84, 184}, .seconds = {10, 10, 10, 8}};
  subtract_dense(dense, quarter, steps);
  EXPECT_THAT(steps.seconds,
              ElementsAre(DoubleNear(10 - (2 + 2.5), 1e-9), DoubleNear(10 - (2 + 5.0), 1e-9),
                          DoubleNear(10 - (3 + 2.8), 1e-9), 0.0))
      << "the last dense step takes 3 + 5.4 seconds";
}

// SparQ checks in every step that it was told of each row's V.
TEST(MeasuredMethods, ContextsGrowAndStartOver) {
  RunOptions options;
  options.weights.random = true;
  const auto backend = Backend::open("cpu", 1);
  Log log({.verbosity = -1});
  Progress progress(log, ProgressMode::kOff);
  ModelBundle model = tiny_bundle();
  model.config.kv_heads = model.config.heads;
  model.config.max_positions = 2500;
  ModelRig rig(
      options,
      {.layers = model.config.layers, .batch = 2, .rows = 8, .context = 2500, .tokens = 5000},
      {model, *backend, progress, log});
  AttentionOptions sparq;
  sparq.kind = attention_from_name("sparq");
  set_keep_ratio(sparq, 0.2);
  rig.use_method(sparq);
  for (const DType dtype : {DType::kF16, DType::kInt8}) {
    rig.use_kv(dtype);
    DecodeWork work(rig);
    EXPECT_TRUE(work.possible(1, 2500 - DecodeWork::kGrowth));
    EXPECT_FALSE(work.possible(1, 2501 - DecodeWork::kGrowth));
    work.begin(2, 2 * 2300);
    for (std::int64_t run = 0; run < 2 * DecodeWork::kGrowth + 5; ++run) {
      work.before_run();
      work.run();
    }
    work.end();
  }
}

TEST_F(MeasuredTinyModel, ReadsBackAsItWasWritten) {
  const std::string text = profile_to_json(profile());
  EXPECT_EQ(parse_profile(text, "profile.json"), profile());
  expect_schema(text);
}

TEST_F(MeasuredTinyModel, KeepsMissRatesByMethodAndOptions) {
  EXPECT_EQ(profile_to_json(profile()).find("miss_rates"), std::string::npos)
      << "a file of earlier versions reads the same";
  AttentionOptions swa;
  swa.kind = AttentionKind::kSwa;
  set_keep_ratio(swa, 0.2);
  HardwareProfile with_rate = profile();
  with_rate.miss_rates = {{.attention = "swa",
                           .attention_options = describe_attention_options(swa),
                           .rate = 0.25,
                           .token_cache_share = 1.5,
                           .prompts = 4,
                           .steps = 60}};
  const std::string text = profile_to_json(with_rate);
  const HardwareProfile again = parse_profile(text, "profile.json");
  EXPECT_EQ(again, with_rate);
  expect_schema(text);
  ASSERT_NE(again.miss_rate(swa), nullptr);
  EXPECT_EQ(again.miss_rate(swa)->rate, 0.25);
  AttentionOptions denser = swa;
  set_keep_ratio(denser, 0.3);
  EXPECT_EQ(again.miss_rate(denser), nullptr);
  swa.kind = AttentionKind::kLocal;
  EXPECT_EQ(again.miss_rate(swa), nullptr);
  std::string wrong = text;
  wrong.replace(wrong.find("\"rate\": 0.25"), 12, "\"rate\": 1.25");
  EXPECT_THROW((void)parse_profile(wrong, "profile.json"), Error);
}

// Sinks are chosen in every step, so that they cross once; what is drawn blindly is rarely there.
TEST(MissRate, IsLowWhereTheSameTokensAreChosenAgain) {
  const std::string path = ::testing::TempDir() + "miss_rate_prompts.jsonl";
  {
    std::ofstream file(path);
    for (int line = 0; line < 6; ++line) {
      file << R"({"max_tokens": 60, "prompt_tokens": [)" << 3 + line;
      for (int token = 1; token < 90; ++token) file << ", " << (7 * token + line) % 50;
      file << "]}\n";
    }
  }
  RunOptions options;
  options.files.prompts = path;
  options.weights.random = true;
  const auto backend = Backend::open("cpu", 1);
  Log log({.verbosity = -1});
  Progress progress(log, ProgressMode::kOff);
  const ModelBundle model = tiny_bundle();
  const PromptFileFacts prompts = examine_prompt_file(options);
  const auto rate_of = [&](AttentionKind kind) {
    options.attention = {};
    options.attention.kind = kind;
    set_keep_ratio(options.attention, 0.15);
    return measure_miss_rate(options, prompts, {model, *backend, progress, log});
  };
  const std::optional<MissRate> sinks = rate_of(AttentionKind::kLmInfinite);
  const std::optional<MissRate> random = rate_of(AttentionKind::kRandom);
  ASSERT_TRUE(sinks && random);
  EXPECT_LT(sinks->rate, 0.1);
  EXPECT_GT(random->rate, 0.5);
  EXPECT_EQ(sinks->attention, "lm-infinite");
  EXPECT_EQ(sinks->prompts, 6);
  EXPECT_GT(sinks->token_cache_share, 0.0);
  EXPECT_EQ(rate_of(AttentionKind::kLmInfinite), sinks) << "it is a count, not a time";
  // Top-k looks at every key: whole blocks come, and there is no token cache.
  EXPECT_FALSE(rate_of(AttentionKind::kTopk));
}

TEST_F(MeasuredTinyModel, LookupsNeverFallWithMoreWork) {
  const CostModel cost(profile());
  double before = 0.0;
  for (double attended = 8; attended <= 8 * 160; attended *= 1.3) {
    const double seconds = cost.decode(false, 8, attended).seconds;
    EXPECT_GE(seconds, before);
    before = seconds;
  }
  before = 0.0;
  for (double bytes = 64; bytes <= 1 << 22; bytes *= 1.7) {
    const double seconds = cost.h2d(bytes).seconds;
    EXPECT_GE(seconds, before);
    before = seconds;
  }
  // Inside of the samples, of which a busy machine leaves fewer.
  ASSERT_TRUE(cost.can_attend_on_host());
  const GridTable& attended = profile().table(CostTable::kHostAttention);
  before = 0.0;
  for (double tokens = 8; tokens <= attended.y.back(); tokens *= 1.3) {
    const double seconds = cost.host_attention(attended.x.back(), tokens).seconds;
    EXPECT_GE(seconds, before);
    EXPECT_GE(seconds, cost.host_attention(1, tokens).seconds) << "more rows, the same tokens";
    before = seconds;
  }
  EXPECT_FALSE(cost.host_attention(2, 64).extrapolated);
  EXPECT_FALSE(cost.decode(true, 2, 64).extrapolated);
  EXPECT_TRUE(cost.decode(true, 4096, 256).extrapolated);
}

TEST_F(MeasuredTinyModel, PlannerAndSimulatorTakeIt) {
  const ModelCosts costs = model_costs(tiny_config(), DType::kF16);
  const CostModel cost(profile());
  const Plan plan = make_plan(cost, {.workload = {.batch = 8, .input_len = 32, .output_len = 96},
                                     .budget = {profile().device_memory, profile().host_memory},
                                     .model = {.costs = costs, .prefill_chunk = 64}});
  EXPECT_GT(plan.tokens_per_second, 0.0);
  SimulatedJob job{.model = costs,
                   .device_memory = profile().device_memory,
                   .host_memory = profile().host_memory,
                   .batch_size = 8,
                   .prefill_chunk = 64};
  job.requests.assign(8, {32, 96});
  const NamedSimulation simulated = simulate_policy("triphase", cost, job, {});
  EXPECT_EQ(simulated.result.infeasible, "");
  EXPECT_GT(simulated.result.tokens_per_second, 0.0);
}

}  // namespace
}  // namespace triphase
