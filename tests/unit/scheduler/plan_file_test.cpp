#include "runtime/plan/plan_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
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

}  // namespace
}  // namespace triphase
