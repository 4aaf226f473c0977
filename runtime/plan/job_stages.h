#pragma once

// A job in stages: its requests under one division of memory after the other, each for longer
// requests than the one before. Most jobs have a single stage.

#include <optional>
#include <vector>

#include "runtime/engine/run_plan.h"
#include "runtime/engine/workplace.h"
#include "runtime/job/prompt_file.h"
#include "runtime/options/run_options.h"
#include "runtime/plan/run_profile.h"
#include "runtime/plan/run_schedule.h"

namespace triphase {

// Requests that run under one plan. All but the last stage leave longer requests for later.
struct Stage {
  RunOptions options;  // with the plan's choices
  std::optional<RunSchedule> schedule;
  RunPlan plan;
};

// Divides memory for the job's own longest request where that of the model is too long for it, and
// for any request in a last stage where one may be longer. Throws as choose_schedule() and
// plan_run().
[[nodiscard]] std::vector<Stage> choose_stages(RunOptions options, const PromptFileFacts& prompts,
                                               RunProfile& profile, const Workplace& place);

}  // namespace triphase
