#pragma once

// What `plan` and `simulate` have in common: a model's costs, a hardware profile by name or file.

#include <string>

#include "runtime/log.h"
#include "runtime/options/option_parser.h"
#include "scheduler/attention/attended_shares.h"
#include "scheduler/cost/hardware_profile.h"
#include "scheduler/cost/model_costs.h"
#include "scheduler/cost/step_cost.h"

namespace triphase {

struct PlannedModel {
  std::string name;
  std::string fingerprint;
  ModelCosts costs;
  DType dtype = DType::kF16;                // of the weights
  SparseFetch fetch = SparseFetch::kAhead;  // of the attention method
  AttendedShares shares;                    // the same
};

// --model: a built-in shape, a config.json or a model directory. Throws E-CLI-OPTION where
// --input-len and --output-len make a longer context than the method takes of this model; the log
// warns where the model itself has none so long.
[[nodiscard]] PlannedModel open_planned_model(const OptionValues& values,
                                              const AttentionOptions& attention, Log& log);

// --attention at --kv-sparsity, else with its own budget; its other options as they are by
// default. Dense attention without either, and at a sparsity of 0.
[[nodiscard]] AttentionOptions attention_option(const OptionValues& values);

// --profile, as open_profile of runtime/plan/open_profile.h. The log says what it lacks.
[[nodiscard]] HardwareProfile profile_option(const OptionValues& values, const PlannedModel& model,
                                             const AttentionOptions& attention, Log& log);

// --kv-dtype: "auto" is the weights' type, and lets the planner weigh INT8.
[[nodiscard]] DType kv_dtype_option(const std::string& text, const PlannedModel& model);

// --recompute: whether the plan may enter Phase III.
[[nodiscard]] bool recompute_option(const OptionValues& values, const AttentionOptions& attention,
                                    SparseFetch fetch);

// --miss-rate, else what the profile has for the method, else 1.
[[nodiscard]] double miss_rate_option(const OptionValues& values, const HardwareProfile& profile,
                                      const AttentionOptions& attention, Log& log);

}  // namespace triphase
