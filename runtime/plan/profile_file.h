#pragma once

// triphase-profile/3: a HardwareProfile as JSON. Schema: docs/schemas/profile.schema.json.

#include <string>
#include <string_view>

#include "scheduler/cost/hardware_profile.h"
#include "scheduler/cost/model_costs.h"

namespace triphase {

inline constexpr std::string_view kProfileFormat = "triphase-profile/3";

[[nodiscard]] std::string profile_to_json(const HardwareProfile& profile);

// Throws ErrorRole::kInput E-PLAN-PROFILE naming the field; `file` is for messages.
[[nodiscard]] HardwareProfile parse_profile(std::string_view text, std::string_view file);

// Throws ErrorRole::kInput E-PLAN-MODEL when the profile's tables are of another shape.
void require_profile_for_model(const HardwareProfile& profile, const ModelCosts& model,
                               std::string_view model_name, std::string_view file);

// "xxh3:..." of the profile's canonical JSON text: what a plan names.
[[nodiscard]] std::string profile_fingerprint(const HardwareProfile& profile);

}  // namespace triphase
