#pragma once

// --profile: a built-in machine by name, or a file.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "scheduler/attention/attention_options.h"
#include "scheduler/cost/hardware_profile.h"
#include "scheduler/cost/model_costs.h"

namespace triphase {

// Profiles and plans of more bytes are refused.
inline constexpr std::uint64_t kMaxPlanBytes = std::uint64_t{64} << 20;

// A built-in machine's profile derived for this model and attention method, or a file. Throws
// E-PLAN-PROFILE, and E-PLAN-MODEL when a file was made for another shape.
[[nodiscard]] HardwareProfile open_profile(const std::string& name, const ModelCosts& model,
                                           DType dtype, std::string_view model_name,
                                           const AttentionOptions& attention);

}  // namespace triphase
