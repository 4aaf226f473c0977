#pragma once

// The plan that a run under --policy triphase follows: a file of `triphase plan`, that of an
// earlier run of the same job (OUT.plan.json), or one made here from a profile where KV or weights
// need the host. Jobs that fit the device need none and pay nothing.

#include <optional>
#include <string>

#include "runtime/engine/workplace.h"
#include "runtime/job/prompt_file.h"
#include "runtime/options/run_options.h"
#include "runtime/plan/run_profile.h"
#include "runtime/plan/workload.h"
#include "scheduler/planner/plan.h"

namespace triphase {

struct RunSchedule {
  Plan plan;
  std::string origin;     // "plan.json", "made for this job"
  std::string profile;    // what its times come from
  std::string file_hash;  // of a --plan file; empty: made here
  bool store = false;     // as OUT.plan.json, before the first record
};

// Decides, and puts the plan's choices into `options` where these are not given: schedule, KV type,
// batch size, budgets. `longest` is the job's longest request, where it was looked for. A dry run
// measures nothing: without a profile it goes without a plan. Throws E-PLAN-* for a plan or profile
// that is damaged, of another model or machine, or that does not fit; E-CLI-CONFLICT where options
// contradict the plan.
[[nodiscard]] std::optional<RunSchedule> choose_schedule(
    RunOptions& options, const PromptFileFacts& prompts,
    const std::optional<LongestRequest>& longest, RunProfile& profile, const Workplace& place);

// One line: "plan (made for this job): p1 12, p2 100 (never), ...".
[[nodiscard]] std::string describe(const RunSchedule& schedule);

}  // namespace triphase
