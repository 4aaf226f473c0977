#pragma once

// Runs a job under a placement policy against the cost model with a virtual clock: the same policy
// objects as in the engine over the same book of KV, no device and no clock. PURE.

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/cost/step_cost.h"
#include "scheduler/placement/phase_schedule.h"
#include "scheduler/placement/placement_policy.h"
#include "scheduler/simulator/simulated_job.h"

namespace triphase {

struct SimulatedStep {
  double seconds = 0.0;
  LaneTimes lanes;
  std::int64_t running = 0;
  std::int64_t longest_context = 0;
  Phase phase = Phase::kOne;  // the latest that any running sequence is in
  std::uint64_t device_kv_bytes = 0;
  std::uint64_t host_kv_bytes = 0;  // X included
  double h2d_bytes = 0.0;
  double d2h_bytes = 0.0;
};

struct SimulationResult {
  std::string infeasible;  // why the job cannot run under this policy; empty: it ran
  DType kv_dtype = DType::kF16;
  std::int64_t streamed_layers = 0;
  double seconds = 0.0;  // prefill and decode
  // Prefill's part of `seconds`. A step with both kinds of rows is divided by their numbers.
  double prefill_seconds = 0.0;
  double decode_seconds = 0.0;
  double tokens_per_second = 0.0;  // generated tokens
  std::uint64_t generated_tokens = 0;
  std::int64_t steps_taken = 0;
  LaneTimes lanes;  // sums; `step` is the whole
  double h2d_bytes = 0.0;
  double d2h_bytes = 0.0;
  double recomputed_tokens = 0.0;  // from X
  // Parts of h2d_bytes and d2h_bytes: X brought for steps that recompute, and X saved.
  double inputs_h2d_bytes = 0.0;
  double inputs_d2h_bytes = 0.0;
  std::uint64_t repeated_tokens = 0;  // prefilled again after a drop
  std::int64_t suspensions = 0;
  std::int64_t max_running = 0;
  std::uint64_t device_peak = 0;  // weights, scratch and staging included
  std::uint64_t host_peak = 0;
  std::int64_t phase_steps[3] = {0, 0, 0};
  std::vector<SimulatedStep> steps;
};

// Never throws for a job that does not fit: the result says why. Throws internal errors when the
// policy breaks its promises.
[[nodiscard]] SimulationResult simulate(const PlacementPolicy& policy, const CostModel& cost,
                                        const SimulatedJob& job);

}  // namespace triphase
