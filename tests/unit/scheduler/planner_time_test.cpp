// Planning takes little time: few shares are tried, and trying one passes over the steps once.

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "runtime/plan/config_costs.h"
#include "scheduler/cost/hardware_spec.h"
#include "scheduler/planner/planner.h"

namespace triphase {
namespace {

const ModelCosts& model() {
  static const ModelCosts costs = model_costs(builtin_shape("opt-13b").value(), DType::kF16);
  return costs;
}

const HardwareProfile& profile() {
  static const HardwareProfile derived =
      derive_profile(*find_hardware("a100-40gb"), model(), DType::kF16);
  return derived;
}

PlanRequest request(ScheduleKind kind, std::int64_t output_len) {
  PlanRequest result{
      .workload = {.batch = 16, .input_len = 512, .output_len = output_len, .caching_ratio = 0.2},
      .budget = {profile().device_memory, profile().host_memory},
      .model = {.costs = model()}};
  result.options.kind = kind;
  return result;
}

// Processor time for each share tried: other programs may run beside the test, and a longer output
// may need more shares.
double seconds_per_share(ScheduleKind kind, std::int64_t output_len) {
  const CostModel cost(profile());
  const PlanRequest asked = request(kind, output_len);
  const std::clock_t start = std::clock();
  const StepModel steps(cost, asked.model, asked.workload, asked.budget);
  const auto choice = search_schedule(steps, asked.options);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  return seconds / static_cast<double>(choice.value().evaluations);
}

TEST(PlannerTime, GrowsAsTheOutputDoes) {
  for (const ScheduleKind kind : {ScheduleKind::kAdaptive, ScheduleKind::kPaper}) {
    // A share of 16 times the steps took 32 to 40 times as long with the adaptive schedule, 10 to
    // 14 times with the paper's; quadratic would be 256 times. What other programs do to the caches
    // may slow down one measurement, but not every one.
    double times = 0.0;
    for (int attempt = 0; attempt < 5; ++attempt) {
      times = seconds_per_share(kind, 4096) / std::max(seconds_per_share(kind, 256), 1e-6);
      if (times < 64.0) break;
    }
    EXPECT_LT(times, 64.0);
  }
}

// The grid has 33 by 33 shares, and the adaptive schedule as many by each block of the context.
TEST(PlannerTime, FewSharesAreTried) {
  const CostModel cost(profile());
  for (const auto& [kind, most] :
       {std::pair(ScheduleKind::kAdaptive, 64), std::pair(ScheduleKind::kPaper, 33 * 33 * 2 / 3)}) {
    for (const std::int64_t output_len : {256, 1024, 4096}) {
      const PlanRequest asked = request(kind, output_len);
      const StepModel steps(cost, asked.model, asked.workload, asked.budget);
      const auto choice = search_schedule(steps, asked.options);
      ASSERT_TRUE(choice.has_value());
      EXPECT_LE(choice->evaluations, most) << output_len << " steps";
    }
  }
}

}  // namespace
}  // namespace triphase
