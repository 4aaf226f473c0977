#pragma once

// --policy and --policy-option become a policy object.

#include <memory>

#include "runtime/options/run_options.h"
#include "scheduler/cost/replay_costs.h"
#include "scheduler/placement/placement_policy.h"

namespace triphase {

// `replay`: what a policy weighs prefixes with (PlacementPolicy::wants_costs); null: not known.
// Throws ErrorRole::kUsage E-CLI-OPTION for an option the policy does not have, naming those it
// has.
[[nodiscard]] std::shared_ptr<const PlacementPolicy> make_policy(
    const RunOptions& options, std::shared_ptr<const ReplayCosts> replay = nullptr);

}  // namespace triphase
