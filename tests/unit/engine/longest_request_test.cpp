// The longest request of a job, and where two plans divide its requests.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "models/attention_runner.h"
#include "runtime/plan/choose_plan.h"
#include "runtime/plan/config_costs.h"
#include "runtime/plan/open_profile.h"
#include "runtime/plan/workload.h"

namespace triphase {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

class LongestRequestTest : public ::testing::Test {
 protected:
  LongestRequestTest() {
    options_.files.model = "llama-2-7b";  // 4096 positions
    // Tests run beside each other.
    options_.files.prompts =
        fmt::format("{}longest_request_{}.jsonl", ::testing::TempDir(),
                    ::testing::UnitTest::GetInstance()->current_test_info()->name());
    options_.weights.random = true;
    options_.generation.sampling.max_tokens = 16;
    model_.emplace(open_model(options_));
  }
  ~LongestRequestTest() override { std::filesystem::remove(options_.files.prompts); }

  // A line of so many tokens; `rest` are more fields.
  static std::string line(std::size_t tokens, const std::string& rest = "") {
    std::string ids;
    for (std::size_t token = 0; token < tokens; ++token) ids += ids.empty() ? "9" : ",9";
    return R"({"prompt_tokens":[)" + ids + "]" + rest + "}\n";
  }

  [[nodiscard]] std::optional<LongestRequest> longest_of(const std::string& lines) const {
    std::ofstream(options_.files.prompts) << lines;
    return find_longest_request(options_, *model_);
  }

  static ComputeMachine hopper(std::uint64_t memory) {
    return {.threads = 1,
            .gpu = GpuMachine{.multiprocessors = 132,
                              .shared_bytes_per_multiprocessor = 228 << 10,
                              .shared_bytes_per_block = 227 << 10,
                              .memory = memory}};
  }
  [[nodiscard]] CostModel h100() const {
    const ModelCosts costs = model_costs(model_->config, model_->weights_dtype);
    return CostModel(open_profile("h100-80gb", costs, model_->weights_dtype, options_.files.model,
                                  options_.attention),
                     options_.attention);
  }

  RunOptions options_;
  std::optional<ModelBundle> model_;
};

// A method chooses in whole contexts: of a model whose every layer has a window, up to the window.
TEST(KeepWithinWindows, LimitsSparseMethodsAlone) {
  RunOptions options;
  options.files.model = "mistral-7b";
  options.weights.random = true;
  const ModelBundle dense = open_model(options);
  EXPECT_EQ(dense.config.window_of_every_layer(), 4096);
  EXPECT_GT(dense.config.max_positions, 4096);
  options.attention.kind = AttentionKind::kSparq;
  const ModelBundle sparse = open_model(options);
  EXPECT_EQ(sparse.config.max_positions, 4096);
  EXPECT_EQ(sparse.config.rope->original_max_positions, dense.config.max_positions);
  EXPECT_EQ(sparse.notes.size(), dense.notes.size() + 1);
  EXPECT_EQ(method_shape(sparse.config).layers, sparse.config.layers);

  // Lines beyond the window are told what dense attention takes, unless another limit is theirs.
  EXPECT_EQ(prompt_limits(options, dense, 100).window.dense_context, 0);
  EXPECT_EQ(score_limits(options, dense, 100).window.dense_context, 0);
  for (const auto& [asked, takes] :
       {std::pair(0, dense.config.max_positions), {5000, 5000}, {4000, 0}}) {
    options.machine.max_context = asked;
    EXPECT_EQ(prompt_limits(options, sparse, 100).window.dense_context, takes) << asked;
    EXPECT_EQ(score_limits(options, sparse, 100).window.dense_context, takes) << asked;
  }
  options.machine.max_context = 0;

  // Some layers without one choose alone, in any context.
  ModelBundle mixed = open_model(options);
  mixed.config.max_positions = 10000;
  mixed.config.sliding_window[5] = mixed.config.sliding_window[31] = 0;
  keep_within_windows(options.attention, mixed);
  EXPECT_EQ(mixed.config.max_positions, 10000);
  EXPECT_EQ(method_shape(mixed.config).in_model, (std::vector<std::int64_t>{5, 31}));
}

TEST_F(LongestRequestTest, ALineWithoutRoomHearsOfTheBatchThatWasGiven) {
  RunOptions options = options_;
  const auto room = [&](std::int64_t batch, const char* origin) {
    options.machine.batch_size = batch;
    options.origins["batch-size"] = {std::to_string(batch), origin};
    EXPECT_EQ(score_limits(options, *model_, 9).more_room,
              prompt_limits(options, *model_, 9).more_room);
    return prompt_limits(options, *model_, 9).more_room;
  };
  EXPECT_EQ(room(4, "command line"), "raise --device-memory, or lower --batch-size");
  EXPECT_EQ(room(1, "command line"), "raise --device-memory");
  EXPECT_EQ(room(0, "command line"), "raise --device-memory");
  EXPECT_EQ(room(32, "default"), "raise --device-memory");
  options.machine.host_memory = options.machine.device_kv_memory = kGiB;
  EXPECT_EQ(room(2, "command line"),
            "raise --device-memory, --device-kv-memory or --host-memory, or lower --batch-size");
}

TEST_F(LongestRequestTest, OfAFewLinesIsKnown) {
  const auto longest =
      longest_of(line(40) + line(100) + "not json\n\n" + line(90, R"(,"max_tokens":30)") + line(7));
  ASSERT_TRUE(longest);
  EXPECT_EQ(longest->lengths.prompt_tokens, 90);
  EXPECT_EQ(longest->lengths.output_tokens, 30);
  EXPECT_TRUE(longest->certain);
  EXPECT_EQ(longest->context(), 120);
}

TEST_F(LongestRequestTest, OfManyLinesIsTheLongestThatLookedLong) {
  std::string lines;
  for (std::size_t index = 0; index < 2 * kMostTokenized; ++index) lines += line(10 + index % 50);
  const auto longest = longest_of(lines + line(800) + line(20));
  ASSERT_TRUE(longest);
  EXPECT_EQ(longest->lengths.prompt_tokens, 800);
  EXPECT_FALSE(longest->certain);
  EXPECT_EQ(longest->context(), 816 + 102);
}

TEST_F(LongestRequestTest, OfALineWithSeveralPromptsIsThatOfEach) {
  const auto longest = longest_of(
      R"({"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":[[9,9],[9,9,9,9,9]]}})"
      "\n");
  ASSERT_TRUE(longest);
  EXPECT_EQ(longest->lengths.prompt_tokens, 5);
}

// Of a scoring job the tokens that are computed: a token that is scored last is not.
TEST_F(LongestRequestTest, OfAScoringJobIsTheLongestTask) {
  options_.job = JobKind::kScore;
  const auto scored = [](std::size_t context, std::size_t continuation) {
    const auto ids = [](std::size_t count) {
      std::string list = "9";
      for (std::size_t token = 1; token < count; ++token) list += ",9";
      return "[" + list + "]";
    };
    return context == 0 ? R"({"text_tokens":)" + ids(continuation) + "}\n"
                        : R"({"context_tokens":)" + ids(context) + R"(,"continuation_tokens":)" +
                              ids(continuation) + "}\n";
  };
  const auto longest = longest_of(scored(50, 3) + scored(20, 60) + "not json\n" + scored(70, 1));
  ASSERT_TRUE(longest);
  EXPECT_EQ(longest->lengths.kv_tokens(), 79);
  EXPECT_TRUE(longest->certain);
  // A text is one task, behind the token that it starts from; a longer one than the model's
  // context is several.
  EXPECT_EQ(longest_of(scored(50, 3) + scored(0, 90))->lengths.kv_tokens(), 90);
  EXPECT_EQ(longest_of(scored(0, 5000))->lengths.kv_tokens(), 4096);
  EXPECT_FALSE(longest_of(scored(4000, 98)));
}

// What can never run needs no memory.
TEST_F(LongestRequestTest, OfLinesThatCannotRunIsNone) {
  EXPECT_FALSE(longest_of(""));
  EXPECT_FALSE(longest_of(line(5000) + R"({"prompt":"text without a tokenizer"})" + "\n"));
  EXPECT_EQ(longest_of(line(5000) + line(60))->lengths.prompt_tokens, 60);
  options_.reading.truncate = Truncate::kLeft;
  EXPECT_EQ(longest_of(line(5000))->context(), 4096);
}

// Between the requests that the first plan is for and the next longer one are lines that the sample
// did not show: as many as cost nothing run under the first plan.
TEST_F(LongestRequestTest, TwoPlansDivideAsHighAsItCostsNothing) {
  options_.machine.host_memory = 4 * kGiB;
  options_.machine.kv_dtype = DType::kF16;
  options_.attention.kind = AttentionKind::kQuest;
  const ComputeMachine machine = hopper(16 * kGiB);
  options_.plan.inputs_settled = true;
  const CostModel cost = h100();
  PlanningJob job{*model_, machine, cost, options_, /*sample=*/{}, /*requests=*/6400};
  for (int request = 0; request < 62; ++request) job.sample.push_back({60, 41});
  job.sample.push_back({3000, 41});
  job.sample.push_back({3500, 41});
  const std::optional<PlanChoice> choice = choose_plan(job);
  ASSERT_TRUE(choice);
  ASSERT_EQ(choice->plan.longer.size(), 1u);
  EXPECT_EQ(choice->too_long, 0);
  const std::int64_t division = choice->plan.longest_request;
  EXPECT_GT(division, 100) << "the longest of the short ones";
  EXPECT_LT(division, 3040);
  EXPECT_EQ(choice->options.machine.job_context, division);
  const auto pages_for = [&](std::int64_t tokens) {
    RunOptions options = choice->options;
    options.machine.job_context = tokens;
    const RunPlan plan = plan_run(options, *model_, machine);
    EXPECT_EQ(plan.longest_request, tokens);
    EXPECT_EQ(plan.memory.batch_size, choice->plan.workload.batch);
    return plan.memory.kv_pages;
  };
  // Page bounds of one more page for each request would take KV's room.
  EXPECT_GE(64 * pages_for(division), 63 * pages_for(100));
  EXPECT_LT(64 * pages_for(division + 1), 63 * pages_for(100));
}

// Where the device cannot hold a whole batch at its longest, requests that get blocks as they grow
// run more together. A GPU would not give the bits of a request again that it computes anew.
TEST_F(LongestRequestTest, RequestsThatGrowGetBlocksOnDemand) {
  options_.machine.host_memory = kGiB;
  options_.machine.kv_dtype = DType::kF16;
  options_.plan.inputs_settled = true;
  const ComputeMachine machine = hopper(17 * kGiB);
  const CostModel cost = h100();
  PlanningJob job{*model_, machine, cost, options_, /*sample=*/{}, /*requests=*/256};
  for (int request = 0; request < 64; ++request) job.sample.push_back({20 + request % 7, 200});
  const std::optional<PlanChoice> choice = choose_plan(job);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->plan.kind, ScheduleKind::kDevice);
  EXPECT_TRUE(choice->plan.schedule.on_demand);
  job.options.machine.deterministic = true;
  const std::optional<PlanChoice> exact = choose_plan(job);
  ASSERT_TRUE(exact);
  EXPECT_FALSE(exact->plan.schedule.on_demand);
  // Nor does such a job follow a plan that would.
  const RunPlan followed = plan_run(with_plan(job.options, choice->plan), *model_, machine);
  EXPECT_EQ(followed.policy->name(), "device-only");
  EXPECT_GT(exact->seconds, choice->seconds);
}

// Where weights leave little room for KV, layers are streamed until requests as long as the job's
// have room: the plan is for them, not for shorter ones. (A batch that memory does not hold at once
// may be planned for a part of each.)
TEST_F(LongestRequestTest, APlanIsForTheJobsLengthsAtAnyBudget) {
  options_.machine.host_memory = 4 * kGiB;
  options_.plan.inputs_settled = true;
  options_.machine.batch_size = 1;
  const ComputeMachine machine = hopper(16 * kGiB);
  const CostModel cost = h100();
  const PlanningJob job{*model_,        machine, cost, options_, {{3000, 41}, {2000, 41}},
                        /*requests=*/64};
  int planned = 0;
  for (const double share : {0.8, 0.85, 0.9, 0.95, 1.0, 1.02, 1.05, 1.1, 1.2}) {
    PlanningJob within = job;
    within.options.machine.device_memory =
        static_cast<std::uint64_t>(share * static_cast<double>(model_->weight_bytes));
    const std::optional<PlanChoice> choice = choose_plan(within);
    if (!choice || choice->too_long > 0) continue;  // more than both tiers hold
    ++planned;
    EXPECT_EQ(choice->plan.workload.input_len, 2500) << share;
    EXPECT_EQ(choice->plan.workload.output_len, 41) << share;
  }
  EXPECT_GE(planned, 7);
}

}  // namespace
}  // namespace triphase
