#pragma once

// Gives a run's placement policy the costs by which it weighs bringing KV back against computing it
// again.

#include "runtime/engine/loaded_model.h"
#include "runtime/plan/run_profile.h"

namespace triphase {

// Makes plan.policy anew with the costs of `profile` where it wants them (wants_costs()) and KV may
// go to the host. A machine is measured only for a policy that cannot do without. Throws as
// RunProfile::find().
void weigh_replay(const RunOptions& options, RunProfile& profile, RunPlan& plan);

}  // namespace triphase
