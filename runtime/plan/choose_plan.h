#pragma once

// Chooses the plan of a job: the candidates are the planner's schedules and the device alone, for
// the whole batch and for smaller ones, and the job's own lines are simulated under each. Lines
// that are much longer than the others may wait and get a plan of their own, so that the memory
// they need slows down nobody else.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/engine/run_plan.h"
#include "runtime/options/run_options.h"
#include "scheduler/cost/step_cost.h"
#include "scheduler/planner/plan.h"
#include "scheduler/simulator/simulated_job.h"

namespace triphase {

struct RequestLengths {
  std::int64_t input = 0;    // mean, rounded up
  std::int64_t output = 0;   // mean of max_tokens, rounded up
  std::int64_t longest = 0;  // prompt and completion of one request
};
[[nodiscard]] RequestLengths lengths_of(std::span<const SimulatedRequest> requests);

struct PlanningJob {
  const ModelBundle& model;
  const ComputeMachine& machine;
  const CostModel& cost;
  RunOptions options;
  std::vector<SimulatedRequest> sample;  // not empty
  std::int64_t requests = 0;  // of the whole job; 0: not known, so that none can be left for later
};

struct PlanChoice {
  Plan plan;                  // without the fields that name model and profile
  RunOptions options;         // the job's, with what the plan settles
  std::int64_t too_long = 0;  // requests of the sample that it would refuse
  double seconds = 0.0;       // of the sample's others; the device alone gets a small bonus
};

// Refuses no request that some candidate could hold, and is the fastest of those that refuse as
// few. Nothing: no candidate fits.
[[nodiscard]] std::optional<PlanChoice> choose_plan(const PlanningJob& job);

// `options` with what a plan settles: batch size, KV type, schedule, longest request.
[[nodiscard]] RunOptions with_plan(RunOptions options, const Plan& plan);

}  // namespace triphase
