// `triphase simulate`: throughput of placement policies on a machine that need not be there.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "runtime/compare/compare_row.h"
#include "runtime/engine/make_policy.h"
#include "runtime/table_writer.h"
#include "scheduler/kv/block_tokens.h"
#include "scheduler/simulator/simulation_policies.h"
#include "tools/commands.h"
#include "tools/plan_inputs.h"

namespace triphase {
namespace {

TableRow row(const NamedSimulation& named, const PlannedModel& model,
             const HardwareProfile& profile, const SimulatedJob& job) {
  const SimulationResult& r = named.result;
  const bool ran = r.infeasible.empty();
  const auto number = [&](double value) { return ran ? TableValue(value) : TableValue(); };
  const auto count = [&](auto value) {
    return ran ? TableValue(static_cast<std::int64_t>(value)) : TableValue();
  };
  return {{"policy", named.policy},
          {"model", model.name},
          {"profile", profile.name},
          {"batch_size", job.batch_size},
          {"input_len", job.requests.front().prompt_tokens},
          {"output_len", job.requests.front().output_tokens},
          {"kv_dtype", ran ? TableValue(std::string(dtype_name(r.kv_dtype))) : TableValue()},
          {"tokens_per_second", number(r.tokens_per_second)},
          {"seconds", number(r.seconds)},
          {"max_running", count(r.max_running)},
          {"suspensions", count(r.suspensions)},
          {"repeated_tokens", count(r.repeated_tokens)},
          {"compute_seconds", number(r.lanes.compute + r.lanes.recompute)},
          {"h2d_seconds", number(r.lanes.h2d)},
          {"d2h_seconds", number(r.lanes.d2h)},
          {"host_seconds", number(r.lanes.host)},
          {"h2d_bytes", number(r.h2d_bytes)},
          {"d2h_bytes", number(r.d2h_bytes)},
          {"recomputed_tokens", number(r.recomputed_tokens)},
          {"device_peak_bytes", count(r.device_peak)},
          {"host_peak_bytes", count(r.host_peak)},
          {"phase_1_steps", count(r.phase_steps[0])},
          {"phase_2_steps", count(r.phase_steps[1])},
          {"phase_3_steps", count(r.phase_steps[2])},
          {"streamed_layers", count(r.streamed_layers)},
          {"extrapolated", ran && r.lanes.extrapolated ? "yes" : "no"},
          {"detail", named.detail},
          {"infeasible", ran ? TableValue() : r.infeasible}};
}

// What people compare: at most ten columns. The rest is in the other formats.
TableRow short_row(const NamedSimulation& named, const SimulatedJob& job) {
  const SimulationResult& r = named.result;
  const bool ran = r.infeasible.empty();
  const compare::Cell cell{.policy = named.policy, .attention = {}, .batch_size = {}};
  const auto text = [&](std::string_view value) {
    return ran ? TableValue(std::string(value)) : TableValue();
  };
  const auto number = [&](double value) { return ran ? TableValue(value) : TableValue(); };
  const auto& steps = r.phase_steps;
  return {{"policy", cell.shown_policy()},
          {"batch", job.batch_size},
          {"KV type", text(dtype_name(r.kv_dtype))},
          {"tokens/s", number(r.tokens_per_second)},
          {"seconds", number(r.seconds)},
          {"running at most", ran ? TableValue(r.max_running) : TableValue()},
          {"compute s", number(r.lanes.compute + r.lanes.recompute)},
          {"link s", number(std::max(r.lanes.h2d, r.lanes.d2h))},
          {"steps in phase I/II/III", text(fmt::format("{}/{}/{}", steps[0], steps[1], steps[2]))},
          {"note", ran ? named.detail : r.infeasible}};
}

// The policy as its options say. Attention is sparse under triphase alone, as elsewhere.
NamedSimulation simulate_given(const std::string& name, const std::vector<std::string>& options,
                               std::optional<DType> kv_dtype, const CostModel& cost,
                               SimulatedJob job) {
  RunOptions run;
  run.machine.policy = name.substr(0, name.find(':'));
  run.machine.policy_options = options;
  run.machine.kv_dtype = kv_dtype;
  const auto policy = make_policy(run);
  if (run.machine.policy != "triphase") job.caching_ratio = job.miss_rate = 1.0;
  return {.detail = fmt::format("{}", fmt::join(options, ", ")),
          .result = simulate(*policy, cost, job)};
}

}  // namespace

int cmd_simulate(const Arguments& arguments, std::unique_ptr<Log>& log) {
  const OptionValues values = begin_command("simulate", arguments, log);
  const std::vector<std::string> names = option_choices(values, "policies", "policy", true);
  const auto given = policy_options(values, names);
  const AttentionOptions attention = attention_option(values);
  const PlannedModel model = open_planned_model(values, attention, *log);
  const HardwareProfile profile = profile_option(values, model, attention, *log);
  const CostModel cost(profile, attention);
  const double miss_rate = miss_rate_option(values, profile, attention, *log);
  const SimulationOptions options{
      .schedule =
          values.text("schedule") == "paper" ? ScheduleKind::kPaper : ScheduleKind::kAdaptive,
      .allow_recompute = recompute_option(values, attention, model.fetch),
      .choose_kv_dtype = values.text("kv-dtype") == "auto",
      .handicaps = values.flag("handicaps")};
  const bool for_people = values.text("format") == "md";
  const DType kv_dtype = kv_dtype_option(values.text("kv-dtype"), model);
  refuse_repeats("policies", names);
  refuse_repeats("batch-size", split_list(values.text("batch-size")));
  std::vector<TableRow> rows;
  bool any_ran = false;
  std::string why_not;  // of the first that cannot run
  for (const std::int64_t batch : integer_list(values, "batch-size", 1, 1 << 20)) {
    SimulatedJob job{
        .model = model.costs,
        .weights_dtype = model.dtype,
        .kv_dtype = kv_dtype,
        .block_tokens = default_block_tokens(kv_dtype),
        .device_memory = values.optional_size("device-memory").value_or(profile.device_memory),
        .host_memory = values.optional_size("host-memory").value_or(profile.host_memory),
        .batch_size = batch,
        .prefill_chunk = profile.prefill_chunk(),
        .caching_ratio = model.shares.attended,
        .miss_rate = miss_rate,
        .fetch = model.fetch,
        .dense_layers = model.shares.dense_layers,
        .recent_share = model.shares.recent,
        .transposed_k = keeps_transposed_k(attention)};
    const std::int64_t lines = values.has("lines") ? values.integer("lines") : batch;
    job.requests.assign(static_cast<std::size_t>(lines),
                        {values.integer("input-len"), values.integer("output-len")});
    for (const std::string& name : names) {
      const auto own = given.find(name);
      NamedSimulation named =
          own == given.end() ? simulate_policy(name.substr(0, name.find(':')), cost, job, options)
                             : simulate_given(name, own->second,
                                              dtype_from_name(values.text("kv-dtype")), cost, job);
      named.policy = name;
      if (named.result.infeasible.empty()) {
        any_ran = true;
      } else if (why_not.empty()) {
        why_not = fmt::format("{}: {}", name, named.result.infeasible);
      }
      rows.push_back(for_people ? short_row(named, job) : row(named, model, profile, job));
    }
  }
  if (for_people) {
    print(fmt::format("{} on {}, {} + {} tokens (more columns: --format json)\n\n", model.name,
                      profile.name, values.integer("input-len"), values.integer("output-len")));
  }
  print(format_table(values.text("format"), rows, {.md_digits = 4}));
  if (!any_ran) {
    throw Error(ErrorRole::kResources, "E-MEM-FIT", "--policies")
        .found(why_not)
        .expected("a policy that can run");
  }
  return 0;
}

}  // namespace triphase
