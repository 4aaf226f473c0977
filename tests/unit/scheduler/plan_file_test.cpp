#include "runtime/plan/plan_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "base/error.h"
#include "runtime/plan/config_costs.h"
#include "scheduler/cost/hardware_spec.h"
#include "scheduler/planner/planner.h"
#include "tests/unit/runtime/json_schema.h"

namespace triphase {
namespace {

using ::testing::HasSubstr;

std::string source_text(const std::string& path) {
  std::ifstream file(std::string(TRIPHASE_TEST_SOURCE_DIR) + "/" + path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

Plan planned(const char* shape, const char* machine, const PlanWorkload& workload,
             ScheduleKind kind) {
  const ModelCosts model = model_costs(builtin_shape(shape).value(), DType::kF16);
  const HardwareProfile profile = derive_profile(*find_hardware(machine), model, DType::kF16);
  Plan plan = make_plan(CostModel(profile), {.workload = workload,
                                             .budget = {profile.device_memory, profile.host_memory},
                                             .model = {.costs = model},
                                             .options = {.kind = kind}});
  plan.model_name = shape;
  plan.machine = profile.machine();
  return plan;
}

TEST(PlanFile, SurvivesWritingAndReading) {
  for (const ScheduleKind kind : {ScheduleKind::kAdaptive, ScheduleKind::kPaper}) {
    const Plan plan =
        planned("opt-13b", "v100-32gb",
                {.batch = 64, .input_len = 128, .output_len = 512, .caching_ratio = 0.2}, kind);
    const std::string text = plan_to_json(plan);
    const Plan again = parse_plan(text, "plan.json");
    EXPECT_EQ(plan_to_json(again), text);
    EXPECT_EQ(again, plan);
    JsonProblem problem;
    const auto schema = parse_json(source_text("docs/schemas/plan.schema.json"), problem);
    ASSERT_TRUE(schema.has_value());
    EXPECT_EQ(testing::schema_violation(*schema, *parse_json(text, problem), *schema), "");
  }
}

TEST(PlanFile, SaysWhetherTheDeviceGivesBlocksOnDemand) {
  Plan plan = planned("opt-6.7b", "v100-16gb", {.batch = 16, .input_len = 128, .output_len = 512},
                      ScheduleKind::kAdaptive);
  plan.kind = ScheduleKind::kDevice;
  plan.schedule.host_tier = false;
  plan.schedule.on_demand = true;
  const std::string text = plan_to_json(plan);
  EXPECT_EQ(parse_plan(text, "plan.json"), plan);
  std::string older = text;
  older.erase(older.find(R"(, "on_demand": true)"), 19);
  EXPECT_FALSE(parse_plan(older, "plan.json").schedule.on_demand);
  plan.kind = ScheduleKind::kAdaptive;
  try {
    (void)parse_plan(plan_to_json(plan), "plan.json");
    FAIL() << "with a host tier";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("schedule.on_demand: true"));
  }
}

TEST(PlanFile, HoldsAPlanForLongerRequests) {
  Plan plan = planned("opt-6.7b", "v100-16gb", {.batch = 16, .input_len = 128, .output_len = 512},
                      ScheduleKind::kAdaptive);
  Plan longer = planned("opt-6.7b", "v100-16gb", {.batch = 2, .input_len = 1500, .output_len = 512},
                        ScheduleKind::kAdaptive);
  longer.schedule.input_tokens = plan.schedule.input_tokens;
  longer.workload.longest = 4000;
  plan.longest_request = 640;
  plan.longer = {longer};
  const std::string text = plan_to_json(plan);
  EXPECT_EQ(parse_plan(text, "plan.json"), plan);
  JsonProblem problem;
  const auto schema = parse_json(source_text("docs/schemas/plan.schema.json"), problem);
  EXPECT_EQ(testing::schema_violation(*schema, *parse_json(text, problem), *schema), "");
  EXPECT_THAT(explain_plan(plan), HasSubstr("requests of more than 640 tokens"));

  const auto refusal = [](const Plan& wrong) -> std::string {
    try {
      (void)parse_plan(plan_to_json(wrong), "plan.json");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), "E-PLAN-FILE");
      return error.message();
    }
    return "accepted";
  };
  Plan third = plan;
  third.longer.front().longest_request = 1800;
  third.longer.front().longer = {longer};
  EXPECT_THAT(refusal(third), HasSubstr("longer_requests.plan.longer_requests: a third plan"));
  // Records of one job have one KV type, in blocks of one length, and as many hidden states.
  Plan rounded = plan;
  rounded.longer.front().kv_dtype = DType::kInt8;
  EXPECT_THAT(refusal(rounded), HasSubstr("longer_requests.plan.kv_dtype: int8, expected fp16, as "
                                          "of shorter requests"));
  Plan blocks = plan;
  blocks.longer.front().block_tokens = 2 * plan.block_tokens;
  EXPECT_THAT(refusal(blocks), HasSubstr("longer_requests.plan.block_tokens: 64, expected 32"));
  Plan inputs = plan;
  inputs.longer.front().schedule.input_tokens = 96;
  EXPECT_THAT(refusal(inputs),
              HasSubstr("longer_requests.plan.schedule.input_tokens: 96, expected 128"));
  Plan nobody = plan;
  nobody.longest_request = 0;
  EXPECT_THAT(refusal(nobody), HasSubstr("longer_requests.above_tokens"));
}

TEST(PlanFile, NamesTheFieldThatIsWrong) {
  const std::string good = plan_to_json(planned("opt-6.7b", "v100-16gb",
                                                {.batch = 16, .input_len = 128, .output_len = 512},
                                                ScheduleKind::kAdaptive));
  const auto message = [&](const std::string& from, const std::string& to) -> std::string {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    try {
      (void)parse_plan(text, "plan.json");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), "E-PLAN-FILE");
      return error.message();
    }
    return "accepted";
  };
  EXPECT_THAT(message("plan/1", "plan/9"), HasSubstr("expected \"triphase-plan/1\""));
  EXPECT_THAT(message("\"alpha\": 0", "\"alpha\": 1.5"),
              HasSubstr("schedule.alpha: 1.5, expected a number from 0 to 1"));
  EXPECT_THAT(message("\"batch_size\": 16", "\"batch_size\": \"16\""),
              HasSubstr("workload.batch_size: \"16\", expected an integer"));
  EXPECT_THAT(message("\"kv_dtype\": \"fp16\"", "\"kv_dtype\": \"f8\""), HasSubstr("kv_dtype"));
  EXPECT_THAT(message("\"phases\"", "\"faces\""), HasSubstr("phases: missing"));
}

TEST(PlanFile, RefusesAnotherModel) {
  Plan plan;
  plan.model_fingerprint = "xxh3:1";
  EXPECT_NO_THROW(require_plan_for_model(plan, "xxh3:1", "plan.json"));
  try {
    require_plan_for_model(plan, "xxh3:2", "plan.json");
    FAIL() << "another model";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "E-PLAN-MODEL");
  }
}

// Golden plans: what the planner decides for known cases, as text. After an intended change run
// TRIPHASE_UPDATE_GOLDEN=1 build/release/bin/plan_file_test and look at the difference.
TEST(GoldenPlans, AreUnchanged) {
  std::string text;
  const auto add = [&](const char* shape, const char* machine, const PlanWorkload& workload,
                       ScheduleKind kind) {
    text += std::string("## ") + shape + " on " + machine +
            (kind == ScheduleKind::kPaper ? ", constant ratios\n" : "\n") +
            explain_plan(planned(shape, machine, workload, kind)) + "\n";
  };
  const PlanWorkload sparse{
      .batch = 64, .input_len = 128, .output_len = 512, .caching_ratio = 0.2, .miss_rate = 0.25};
  PlanWorkload dense = sparse;
  dense.caching_ratio = dense.miss_rate = 1.0;
  add("opt-30b", "h100-80gb", sparse, ScheduleKind::kAdaptive);
  add("opt-30b", "h100-80gb", sparse, ScheduleKind::kPaper);
  add("opt-30b", "h100-80gb", dense, ScheduleKind::kAdaptive);
  add("opt-13b", "v100-32gb", dense, ScheduleKind::kAdaptive);
  add("opt-6.7b", "v100-16gb", sparse, ScheduleKind::kAdaptive);
  add("opt-6.7b", "h100-80gb", sparse, ScheduleKind::kAdaptive);
  add("llama-3-8b", "t4", {.batch = 32, .input_len = 1024, .output_len = 256},
      ScheduleKind::kAdaptive);
  const std::string path = "tests/golden/plans.txt";
  if (std::getenv("TRIPHASE_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(std::string(TRIPHASE_TEST_SOURCE_DIR) + "/" + path) << text;
  }
  EXPECT_EQ(text, source_text(path));
}

// A plan's seconds, summed by a slow model that follows each block of a sequence: the oldest full
// blocks outside the local window leave as the schedule says, and a share of them is recomputable.
double slow_decode_seconds(const StepModel& steps, const PhaseSchedule& schedule) {
  const PlanWorkload& work = steps.workload();
  const std::int64_t block = steps.model().block_tokens;
  // The half of the attended tokens that are the newest, and at least the one being made.
  const auto leaves = [&](std::int64_t end, std::int64_t context) {
    const double window = work.caching_ratio >= 1.0 ? 0.0 : work.caching_ratio / 2.0;
    const double younger = static_cast<double>(context - end);
    if (younger < std::max(window * static_cast<double>(context), 1.0)) return false;
    return schedule.device_tokens > 0
               ? context - end >= schedule.device_tokens
               : static_cast<double>(end) <= schedule.alpha * static_cast<double>(context) + 1e-9;
  };
  double seconds = 0.0;
  std::int64_t before = 0;
  const auto host_at = [&](std::int64_t context) {
    std::int64_t host = 0;
    while (leaves(host + block, context)) host += block;
    return host;
  };
  if (schedule.p1 == 0) {
    before = host_at(work.input_len);
    seconds += steps.prefill(before, 0).step - steps.prefill(0, 0).step;
  }
  if (schedule.input_tokens > 0) {
    seconds += steps.prefill(0, schedule.input_tokens).step - steps.prefill(0, 0).step;
  }
  for (std::int64_t j = 0; j < work.output_len; ++j) {
    StepTokens tokens{.context = work.input_len + j + 1};
    if (j >= schedule.p1) {
      tokens.host = host_at(tokens.context);
      tokens.newly_offloaded = tokens.host - before;
      before = tokens.host;
      if (j >= schedule.p2) {
        while (static_cast<double>(tokens.recompute + block) <=
               schedule.beta * static_cast<double>(tokens.host) + 1e-9) {
          tokens.recompute += block;
        }
      }
    }
    EXPECT_LE(tokens.recompute, schedule.input_tokens) << "X of what is recomputed was saved";
    EXPECT_TRUE(steps.fits(tokens, schedule.input_tokens)) << "step " << j;
    seconds += steps.decode(tokens, schedule.input_tokens).step;
  }
  return seconds;
}

TEST(Plan, GoldenPlansCostWhatTheSlowModelSums) {
  const PlanWorkload sparse{
      .batch = 64, .input_len = 128, .output_len = 512, .caching_ratio = 0.2, .miss_rate = 0.25};
  PlanWorkload dense = sparse;
  dense.caching_ratio = dense.miss_rate = 1.0;
  struct Golden {
    const char *shape, *machine;
    PlanWorkload workload;
    ScheduleKind kind;
  };
  std::set<Phase> last;
  for (const Golden& golden : {Golden{"opt-30b", "h100-80gb", sparse, ScheduleKind::kAdaptive},
                               Golden{"opt-30b", "h100-80gb", sparse, ScheduleKind::kPaper},
                               Golden{"opt-30b", "h100-80gb", dense, ScheduleKind::kAdaptive},
                               Golden{"opt-13b", "v100-32gb", dense, ScheduleKind::kAdaptive},
                               Golden{"opt-6.7b", "v100-16gb", sparse, ScheduleKind::kAdaptive},
                               Golden{"opt-6.7b", "h100-80gb", sparse, ScheduleKind::kAdaptive}}) {
    const Plan plan = planned(golden.shape, golden.machine, golden.workload, golden.kind);
    const ModelCosts costs = model_costs(builtin_shape(golden.shape).value(), DType::kF16);
    const HardwareProfile profile =
        derive_profile(*find_hardware(golden.machine), costs, DType::kF16);
    const CostModel cost(profile);
    PlanModel model{.costs = costs};
    EXPECT_EQ(plan.schedule.kv_dtype, plan.kv_dtype);
    EXPECT_EQ(plan.schedule.block_tokens, plan.block_tokens);
    model.kv_dtype = plan.kv_dtype;
    model.streamed_layers = plan.schedule.streamed_layers;
    const StepModel steps(cost, model, golden.workload, plan.budget);
    const double slow = slow_decode_seconds(steps, plan.schedule);
    EXPECT_NEAR(plan.decode_seconds, slow, 1e-9 * slow) << golden.shape;
    double phases = 0.0;
    for (const PhasePrediction& phase : plan.phases) phases += phase.seconds;
    const double sum = plan.prefill_seconds + plan.decode_seconds;
    EXPECT_NEAR(plan.tokens_per_second, 64 * 512 / sum, 1e-9 * plan.tokens_per_second);
    EXPECT_NEAR(plan.prefill_seconds, steps.prefill(0, 0).step, 1e-12);
    EXPECT_LE(phases, plan.decode_seconds * (1 + 1e-9)) << "saving X is no step's";
    // No neighbour is better: the plan is good, not only legal.
    for (const PlanNeighbour& neighbour : plan.neighbours) {
      if (neighbour.infeasible.empty()) {
        EXPECT_GE(neighbour.seconds, plan.decode_seconds * (1 - 1e-9)) << neighbour.change;
      }
    }
    last.insert(scheduled_phase(plan.schedule, 511));
  }
  EXPECT_TRUE(last.contains(Phase::kOne) && last.contains(Phase::kThree));
}

}  // namespace
}  // namespace triphase
