#pragma once

// triphase-profile/1: a HardwareProfile as JSON. Schema: docs/schemas/profile.schema.json.

#include <string>
#include <string_view>

#include "scheduler/cost/hardware_profile.h"

namespace triphase {

inline constexpr std::string_view kProfileFormat = "triphase-profile/1";

[[nodiscard]] std::string profile_to_json(const HardwareProfile& profile);

// Throws ErrorRole::kInput E-PLAN-PROFILE naming the field; `file` is for messages.
[[nodiscard]] HardwareProfile parse_profile(std::string_view text, std::string_view file);

// "xxh3:..." of the profile's canonical JSON text: what a plan names.
[[nodiscard]] std::string profile_fingerprint(const HardwareProfile& profile);

}  // namespace triphase
