#pragma once

// triphase-plan/1: a Plan as JSON. Schema: docs/schemas/plan.schema.json.

#include <string>
#include <string_view>

#include "scheduler/planner/plan.h"

namespace triphase {

inline constexpr std::string_view kPlanFormat = "triphase-plan/1";

[[nodiscard]] std::string plan_to_json(const Plan& plan);

// Throws ErrorRole::kInput E-PLAN-FILE naming the field; `file` is for messages.
[[nodiscard]] Plan parse_plan(std::string_view text, std::string_view file);

// Throws ErrorRole::kInput E-PLAN-MODEL when the plan names another model.
void require_plan_for_model(const Plan& plan, std::string_view model_fingerprint,
                            std::string_view file);

// Throws ErrorRole::kInput E-PLAN-MACHINE when the plan's times are those of another machine.
void require_plan_for_machine(const Plan& plan, std::string_view machine, std::string_view file);

}  // namespace triphase
