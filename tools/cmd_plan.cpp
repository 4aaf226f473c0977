// `triphase plan`: the phase-switch plan of a workload, and why.

#include <fmt/format.h>

#include "base/error.h"
#include "runtime/job/file_ops.h"
#include "runtime/plan/plan_file.h"
#include "runtime/plan/profile_file.h"
#include "scheduler/planner/planner.h"
#include "tools/commands.h"
#include "tools/plan_inputs.h"

namespace triphase {

int cmd_plan(const Arguments& arguments, std::unique_ptr<Log>& log) {
  const OptionValues values = begin_command("plan", arguments, log);
  const PlannedModel model = open_planned_model(values.text("model"));
  const AttentionOptions attention = attention_option(values);
  const HardwareProfile profile = profile_option(values, model, attention, *log);
  PlanRequest request{
      .workload = {.batch = values.integer("batch-size"),
                   .input_len = values.integer("input-len"),
                   .output_len = values.integer("output-len"),
                   .caching_ratio = 1.0 - values.real("kv-sparsity"),
                   .miss_rate = miss_rate_option(values, profile, attention, *log)},
      .budget = {values.has("device-memory") ? values.size("device-memory") : profile.device_memory,
                 values.has("host-memory") ? values.size("host-memory") : profile.host_memory},
      .model = {.costs = model.costs,
                .weights_dtype = model.dtype,
                .kv_dtype = kv_dtype_option(values.text("kv-dtype"), model)},
      .choose_kv_dtype = values.text("kv-dtype") == "auto",
      .options = {.kind = values.text("schedule") == "paper" ? ScheduleKind::kPaper
                                                             : ScheduleKind::kAdaptive,
                  .exhaustive = values.flag("exhaustive"),
                  .allow_recompute = !values.flag("no-recompute")}};
  Plan plan = make_plan(CostModel(profile, attention), request);
  plan.model_name = model.name;
  plan.model_fingerprint = model.fingerprint;
  plan.profile_fingerprint = profile_fingerprint(profile);
  plan.machine = profile.machine();
  if (plan.extrapolated) {
    log->warning(
        "the profile has no samples near some of the plan's steps; their times are "
        "extrapolated");
  }
  const std::string text = plan_to_json(plan);
  if (values.has("output")) {
    write_file_atomically(system_file_ops(), values.text("output"), text, 0644);
  }
  if (values.flag("explain")) {
    print(explain_plan(plan));
  } else if (!values.has("output")) {
    print(text);
  }
  return 0;
}

}  // namespace triphase
