#pragma once

// --policy and --policy-option become a policy object.

#include <memory>

#include "runtime/options/run_options.h"
#include "scheduler/placement/placement_policy.h"

namespace triphase {

// Throws ErrorRole::kUsage E-CLI-OPTION for an option the policy does not have, naming those it
// has.
[[nodiscard]] std::shared_ptr<const PlacementPolicy> make_policy(const RunOptions& options);

}  // namespace triphase
