#pragma once

// What the cost model says of a run before it begins (`run --predict`): the job simulated with the
// run's own placement policy and division of memory, so that what was predicted and what was
// measured can be held beside each other in the summary.

#include <optional>
#include <vector>

#include "runtime/engine/loaded_model.h"
#include "runtime/job/prompt_file.h"
#include "runtime/job/run_summary.h"
#include "runtime/log.h"
#include "scheduler/cost/hardware_profile.h"
#include "scheduler/simulator/simulated_job.h"

namespace triphase {

// The job as the simulator runs it under this division of memory. `requests` must not be empty.
[[nodiscard]] SimulatedJob simulated_job(const RunOptions& options, const ModelBundle& model,
                                         const RunPlan& plan,
                                         std::vector<SimulatedRequest> requests);

// Requests of a job that run under one plan.
struct PredictedStage {
  const RunOptions* options = nullptr;
  const RunPlan* plan = nullptr;
};

// Of all stages, each of which has the requests that were too long for those before it. Nothing,
// with a line in the log: a job that cannot be read twice, or is too long to simulate.
[[nodiscard]] std::optional<RunPrediction> predict_run(const std::vector<PredictedStage>& stages,
                                                       const ModelBundle& model,
                                                       const PromptFileFacts& prompts,
                                                       const HardwareProfile& profile, Log& log);

}  // namespace triphase
