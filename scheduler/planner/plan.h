#pragma once

// A phase-switch plan as a value: the content of a triphase-plan/1 file. PURE.

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "scheduler/placement/phase_schedule.h"

namespace triphase {

struct PlanWorkload {
  std::int64_t batch = 0;       // b: sequences running together
  std::int64_t input_len = 0;   // s
  std::int64_t output_len = 0;  // n
  double caching_ratio = 1.0;   // r = 1 - KV sparsity: share of the context that a step attends
  // Share of the attended host tokens that have to cross the link in a step; the rest is still
  // cached on the device from earlier steps. 1 is the bound of ALISA's eq. 4.
  double miss_rate = 1.0;
  // Prompt and completion of the longest request; 0: all are alike. Where no schedule holds a batch
  // of whole requests, s and n are those of a part of each.
  std::int64_t longest = 0;

  [[nodiscard]] std::int64_t most_tokens() const {
    return longest > 0 ? longest : input_len + output_len;
  }
  friend bool operator==(const PlanWorkload&, const PlanWorkload&) = default;
};

struct PlanBudget {
  std::uint64_t device_memory = 0;
  std::uint64_t host_memory = 0;
  friend bool operator==(const PlanBudget&, const PlanBudget&) = default;
};

enum class ScheduleKind : std::uint8_t {
  kAdaptive,  // the host takes only what the device cannot hold
  kPaper,     // constant alpha and beta, as published
  kDevice,    // no host tier: fewer sequences at a time, none of whose KV crosses the link
};

// Predicted, per phase (index 0 is Phase I).
struct PhasePrediction {
  std::int64_t steps = 0;
  double seconds = 0.0;
  double compute_seconds = 0.0;    // T^c of eq. 5
  double transfer_seconds = 0.0;   // T^m: both directions
  double recompute_seconds = 0.0;  // T^r
  friend bool operator==(const PhasePrediction&, const PhasePrediction&) = default;
};

// What a change of one parameter by one step of the grid would cost.
struct PlanNeighbour {
  std::string change;      // "p1 56 -> 55"
  double seconds = 0.0;    // of decode
  std::string infeasible;  // why it cannot be; empty: it can
  friend bool operator==(const PlanNeighbour&, const PlanNeighbour&) = default;
};

struct Plan {
  PlanWorkload workload;
  PlanBudget budget;
  ScheduleKind kind = ScheduleKind::kAdaptive;
  PhaseSchedule schedule;
  DType kv_dtype = DType::kF16;
  std::int64_t block_tokens = 32;
  std::string recompute_source = "never";  // "hidden-states-int8" or "never"
  double prefill_seconds = 0.0;
  PhasePrediction phases[3];
  double decode_seconds = 0.0;
  double tokens_per_second = 0.0;  // generated / (prefill + decode)
  std::uint64_t device_peak = 0;   // predicted bytes
  std::uint64_t host_peak = 0;
  double paper_objective = 0.0;         // eq. 5 as printed, of this schedule: nothing overlaps
  double paper_schedule_seconds = 0.0;  // decode under the best constant ratios; 0: none fits
  bool extrapolated = false;            // a time was looked up outside of the profile's samples
  std::vector<PlanNeighbour> neighbours;
  std::string profile_fingerprint;
  std::string machine;  // HardwareProfile::machine() of that profile
  std::string model_fingerprint;
  std::string model_name;
  // Requests of more tokens wait until all others are done, and follow the one plan in `longer`.
  // 0: there is none, and every request follows this plan.
  std::int64_t longest_request = 0;
  std::vector<Plan> longer;

  friend bool operator==(const Plan& a, const Plan& b) = default;
};

// The plan as people read it: phases, budgets, and why each parameter is what it is.
[[nodiscard]] std::string explain_plan(const Plan& plan);

}  // namespace triphase
