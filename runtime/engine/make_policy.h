#pragma once

// --policy and --policy-option become a policy object.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/options/run_options.h"
#include "scheduler/placement/placement_policy.h"

namespace triphase {

// One --policy-option of a policy.
struct PolicyOption {
  std::string_view name;  // "kv-share"
  std::string expected;   // what its value may be
  std::string default_text;
  std::string_view help;  // one sentence
};
[[nodiscard]] std::vector<PolicyOption> policy_options_of(std::string_view policy);

// Throws ErrorRole::kUsage E-CLI-OPTION for an option the policy does not have, naming those it
// has, and E-CLI-CONFLICT where it excludes the attention method or the KV type.
[[nodiscard]] std::shared_ptr<const PlacementPolicy> make_policy(const RunOptions& options);

}  // namespace triphase
