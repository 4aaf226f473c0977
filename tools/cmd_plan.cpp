// `triphase plan`: the phase-switch plan of a workload, and why.

#include <fmt/format.h>

#include "runtime/job/file_ops.h"
#include "runtime/plan/plan_file.h"
#include "runtime/plan/profile_file.h"
#include "scheduler/kv/block_tokens.h"
#include "scheduler/planner/planner.h"
#include "tools/commands.h"
#include "tools/plan_inputs.h"

namespace triphase {
namespace {

// A plan is of all requests together. Says so where fewer at a time would be faster, as run and
// simulate then have it.
void note_smaller_batches(const CostModel& cost, PlanRequest request, const Plan& plan, Log& log) {
  constexpr double kWorthANote = 1.05;
  const std::int64_t all = request.workload.batch;
  double best = plan.tokens_per_second * kWorthANote;
  std::int64_t batch = 0;
  for (std::int64_t fewer = all / 2; fewer > 0 && fewer >= all / 4; fewer /= 2) {
    request.workload.batch = fewer;
    const double rate = make_plan(cost, request).tokens_per_second;
    if (rate <= best) continue;
    best = rate;
    batch = fewer;
  }
  if (batch == 0) return;
  log.info(
      fmt::format("{} requests at a time would make {:.0f} tokens/s, all {} together make "
                  "{:.0f}; triphase run and simulate weigh that",
                  batch, best, all, plan.tokens_per_second));
}

}  // namespace

int cmd_plan(const Arguments& arguments, std::unique_ptr<Log>& log) {
  const OptionValues values = begin_command("plan", arguments, log);
  const AttentionOptions attention = attention_option(values);
  const PlannedModel model = open_planned_model(values, attention, *log);
  const HardwareProfile profile = profile_option(values, model, attention, *log);
  const DType kv_dtype = kv_dtype_option(values.text("kv-dtype"), model);
  PlanRequest request{
      .workload = {.batch = values.integer("batch-size"),
                   .input_len = values.integer("input-len"),
                   .output_len = values.integer("output-len"),
                   .caching_ratio = model.shares.attended,
                   .miss_rate = miss_rate_option(values, profile, attention, *log)},
      .budget = {values.optional_size("device-memory").value_or(profile.device_memory),
                 values.optional_size("host-memory").value_or(profile.host_memory)},
      .model = {.costs = model.costs,
                .weights_dtype = model.dtype,
                .kv_dtype = kv_dtype,
                .block_tokens = default_block_tokens(kv_dtype),
                .prefill_chunk = profile.prefill_chunk(),
                .fetch = model.fetch,
                .dense_layers = model.shares.dense_layers,
                .recent_share = model.shares.recent,
                .transposed_k = keeps_transposed_k(attention)},
      .choose_kv_dtype = values.text("kv-dtype") == "auto",
      .options = {.kind = values.text("schedule") == "paper" ? ScheduleKind::kPaper
                                                             : ScheduleKind::kAdaptive,
                  .allow_recompute = recompute_option(values, attention, model.fetch)}};
  const CostModel cost(profile, attention);
  Plan plan = make_plan(cost, request);
  plan.model_name = model.name;
  plan.model_fingerprint = model.fingerprint;
  plan.profile_fingerprint = profile_fingerprint(profile);
  plan.machine = profile.machine();
  if (plan.extrapolated) {
    log->warning(
        "the profile has no samples near some of the plan's steps; their times are "
        "extrapolated");
  }
  note_smaller_batches(cost, request, plan, *log);
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
