#pragma once

// The planner: minimizes the predicted time of a batch (ALISA's eq. 5 with overlapping lanes) over
// p1, p2, alpha and beta subject to eq. 6 in closed ranges and to the byte budgets. PURE.
//
// For fixed shares the two switch steps are found exactly in one pass, since the cost of a step
// depends on its phase alone. The shares are found greedily: one share at a time moves along a grid
// while that helps.

#include <cstdint>
#include <optional>

#include "scheduler/planner/step_model.h"

namespace triphase {

struct PlanOptions {
  ScheduleKind kind = ScheduleKind::kAdaptive;
  std::int64_t share_levels = 32;  // alpha and beta are multiples of 1 / share_levels
  bool exhaustive = false;         // the whole grid, which tests compare the search with
  bool allow_recompute = true;
};

struct PlanRequest {
  PlanWorkload workload;
  PlanBudget budget;
  PlanModel model;  // streamed_layers are chosen, kv_dtype where `choose_kv_dtype` asks for it
  bool choose_kv_dtype = false;  // INT8 or the given one
  PlanOptions options;
};

// Nothing: no schedule fits.
[[nodiscard]] std::optional<Plan> find_plan(const CostModel& cost, const PlanRequest& request);
// Throws ErrorRole::kResources E-PLAN-FIT, saying what batch would fit, when nothing fits.
[[nodiscard]] Plan make_plan(const CostModel& cost, const PlanRequest& request);

// The search at one KV type and number of streamed layers. Nothing when no schedule fits.
struct ScheduleChoice {
  PhaseSchedule schedule;
  double decode_seconds = 0.0;
  std::int64_t evaluations = 0;  // shares tried
};
[[nodiscard]] std::optional<ScheduleChoice> search_schedule(const StepModel& steps,
                                                            const PlanOptions& options);

// Predicted decode seconds of a schedule, or why it does not fit (then `seconds` is infinite).
struct ScheduleCost {
  double seconds = 0.0;
  std::string infeasible;
};
[[nodiscard]] ScheduleCost schedule_cost(const StepModel& steps, const PhaseSchedule& schedule);

// Where the tokens of each sequence are at decode step j (tokens generated before it), by a
// schedule.
[[nodiscard]] StepTokens tokens_at(const StepModel& steps, const PhaseSchedule& schedule,
                                   std::int64_t j);

}  // namespace triphase
