#pragma once

// Runs a job under a placement policy against the cost model with a virtual clock: the same policy
// objects as in the engine, the same ledger for pages, no device and no clock. PURE.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/attention/prompt_units.h"
#include "scheduler/cost/model_costs.h"
#include "scheduler/cost/step_cost.h"
#include "scheduler/placement/phase_schedule.h"
#include "scheduler/placement/placement_policy.h"

namespace triphase {

struct SimulatedLine {
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
};

// Memory that is divided already, as a run has it, instead of by the simulator.
struct MemoryDivision {
  PlacementLimits limits;
  std::int64_t streamed_layers = 0;
  std::optional<StaticPlacement> placement;  // what the policy chose then; nothing: it is asked
};

struct SimulatedJob {
  ModelCosts model;
  DType weights_dtype = DType::kF16;
  DType kv_dtype = DType::kF16;    // where the policy does not choose
  std::int64_t block_tokens = 32;  // the same
  std::uint64_t device_memory = 0;
  std::uint64_t host_memory = 0;
  double activation_bytes = 2.0;  // of a query's element as it crosses the link
  std::int64_t batch_size = 0;
  std::int64_t prefill_chunk = 2048;
  PromptUnits prompt_units;    // that a step does not cut
  double caching_ratio = 1.0;  // r: share of the context that a decode step touches
  double miss_rate = 1.0;      // share of the touched host tokens that crosses the link
  SparseFetch fetch = SparseFetch::kAhead;  // below r = 1
  std::int64_t channels =
      0;  // of all KV heads, of each token on the host, to choose by; below r = 1
  std::vector<SimulatedLine> lines;
  std::optional<MemoryDivision> division;  // then the budgets above are not looked at
  bool keep_steps = false;                 // fill SimulationResult::steps, views and actions
};

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
  // Of it, by the share of rows where a step has both kinds.
  double prefill_seconds = 0.0;
  double decode_seconds = 0.0;
  double tokens_per_second = 0.0;  // generated tokens
  std::uint64_t generated_tokens = 0;
  std::int64_t steps_taken = 0;
  LaneTimes lanes;  // sums; `step` is the whole
  double h2d_bytes = 0.0;
  double d2h_bytes = 0.0;
  double recomputed_tokens = 0.0;  // from X
  // Of h2d_bytes and d2h_bytes: X brought for steps that recompute, and X saved.
  double inputs_h2d_bytes = 0.0;
  double inputs_d2h_bytes = 0.0;
  double channels_h2d_bytes = 0.0;    // of h2d_bytes
  std::uint64_t repeated_tokens = 0;  // prefilled again after a drop
  std::uint64_t replayed_tokens = 0;  // of prefixes that a swap dropped, from their token ids
  std::int64_t suspensions = 0;
  std::int64_t max_running = 0;
  std::uint64_t device_peak = 0;  // weights, scratch and staging included
  std::uint64_t host_peak = 0;
  std::int64_t phase_steps[3] = {0, 0, 0};
  double phase_seconds[3] = {0.0, 0.0, 0.0};
  std::vector<SimulatedStep> steps;
  std::vector<StepView> views;  // what the policy saw; ids are the lines' indices
  std::vector<PlacementActions> actions;
};

// Never throws for a job that does not fit: the result says why. Throws internal errors when the
// policy breaks its promises.
[[nodiscard]] SimulationResult simulate(const PlacementPolicy& policy, const CostModel& cost,
                                        const SimulatedJob& job);

}  // namespace triphase
