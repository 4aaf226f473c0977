#pragma once

// Policies by name for a simulated job, each as good as it can be made there: `triphase` by its
// planner, `flexgen` by its own search and by hand-set percentages, KV moved or attended on the
// host, whichever is fastest. PURE.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/planner/planner.h"
#include "scheduler/simulator/simulator.h"

namespace triphase {

struct NamedSimulation {
  std::string policy;
  std::string detail;  // which variant ran: "cg 0.30, KV moved"
  SimulationResult result;
  std::optional<Plan> plan;  // of triphase
};

struct SimulationOptions {
  ScheduleKind schedule = ScheduleKind::kAdaptive;
  bool allow_recompute = true;
  bool choose_kv_dtype = false;  // triphase weighs INT8 against the given type
  bool handicaps = false;        // baselines with their originals' handicaps
};

// Runs `policy`, a name of --policy, on the job. Sparsity applies to `triphase` alone: the others
// attend densely as their originals do.
[[nodiscard]] NamedSimulation simulate_policy(std::string_view policy, const CostModel& cost,
                                              const SimulatedJob& job,
                                              const SimulationOptions& options);

}  // namespace triphase
