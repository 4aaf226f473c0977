#pragma once

// What the cost model says of a run before it begins (`run --predict`): the job simulated with the
// run's own placement policy and division of memory, so that what was predicted and what was
// measured can be held beside each other in the summary.

#include <optional>
#include <vector>

#include "runtime/engine/run_plan.h"
#include "runtime/engine/workplace.h"
#include "runtime/job/prompt_file.h"
#include "runtime/job/run_summary.h"
#include "scheduler/cost/hardware_profile.h"
#include "scheduler/simulator/simulated_job.h"

namespace triphase {

// The job as the simulator runs it under this division of memory. `requests` must not be empty.
[[nodiscard]] SimulatedJob simulated_job(const RunOptions& options, const ModelBundle& model,
                                         const RunPlan& plan,
                                         std::vector<SimulatedRequest> requests);

struct Stage;

// Of all stages, each of which has the requests that were too long for those before it. Nothing,
// with a line in the log: a job that cannot be read twice, or is too long to simulate.
[[nodiscard]] std::optional<RunPrediction> predict_run(const std::vector<Stage>& stages,
                                                       const PromptFileFacts& prompts,
                                                       const HardwareProfile& profile,
                                                       const Workplace& place);

}  // namespace triphase
