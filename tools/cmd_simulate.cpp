// `triphase simulate`: throughput of placement policies on a machine that need not be there.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "runtime/compare/compare_row.h"
#include "runtime/engine/make_policy.h"
#include "runtime/table_writer.h"
#include "scheduler/kv/block_tokens.h"
#include "scheduler/simulator/simulation_policies.h"
#include "tools/commands.h"
#include "tools/plan_inputs.h"

namespace triphase {
namespace {

const std::vector<std::string>& columns() {
  static const std::vector<std::string> kColumns = {"policy",
                                                    "model",
                                                    "profile",
                                                    "batch_size",
                                                    "input_len",
                                                    "output_len",
                                                    "kv_dtype",
                                                    "tokens_per_second",
                                                    "seconds",
                                                    "max_running",
                                                    "suspensions",
                                                    "repeated_tokens",
                                                    "compute_seconds",
                                                    "h2d_seconds",
                                                    "d2h_seconds",
                                                    "host_seconds",
                                                    "h2d_bytes",
                                                    "d2h_bytes",
                                                    "recomputed_tokens",
                                                    "device_peak_bytes",
                                                    "host_peak_bytes",
                                                    "phase_1_steps",
                                                    "phase_2_steps",
                                                    "phase_3_steps",
                                                    "streamed_layers",
                                                    "extrapolated",
                                                    "detail",
                                                    "infeasible"};
  return kColumns;
}

std::vector<TableCell> row(const NamedSimulation& named, const PlannedModel& model,
                           const HardwareProfile& profile, const SimulatedJob& job) {
  const SimulationResult& r = named.result;
  const bool ran = r.infeasible.empty();
  const auto number = [&](double value) { return ran ? number_cell(value) : null_cell(); };
  const auto count = [&](auto value) {
    return ran ? integer_cell(static_cast<std::int64_t>(value)) : null_cell();
  };
  return {text_cell(named.policy),
          text_cell(model.name),
          text_cell(profile.name),
          integer_cell(job.batch_size),
          integer_cell(job.requests.front().prompt_tokens),
          integer_cell(job.requests.front().output_tokens),
          ran ? text_cell(dtype_name(r.kv_dtype)) : null_cell(),
          number(r.tokens_per_second),
          number(r.seconds),
          count(r.max_running),
          count(r.suspensions),
          count(r.repeated_tokens),
          number(r.lanes.compute + r.lanes.recompute),
          number(r.lanes.h2d),
          number(r.lanes.d2h),
          number(r.lanes.host),
          number(r.h2d_bytes),
          number(r.d2h_bytes),
          number(r.recomputed_tokens),
          count(r.device_peak),
          count(r.host_peak),
          count(r.phase_steps[0]),
          count(r.phase_steps[1]),
          count(r.phase_steps[2]),
          count(r.streamed_layers),
          text_cell(ran && r.lanes.extrapolated ? "yes" : "no"),
          text_cell(named.detail),
          ran ? null_cell() : text_cell(r.infeasible)};
}

// What people compare: at most ten columns. The rest is in the other formats.
const std::vector<std::string>& short_columns() {
  static const std::vector<std::string> kColumns = {
      "policy",    "batch",   "KV type",
      "tokens/s",  "seconds", "running at most",
      "compute s", "link s",  "steps in phase I/II/III",
      "note"};
  return kColumns;
}

std::vector<TableCell> short_row(const NamedSimulation& named, const SimulatedJob& job) {
  const SimulationResult& r = named.result;
  const compare::Cell cell{.policy = named.policy, .attention = {}, .batch_size = {}};
  std::vector<TableCell> cells = {text_cell(cell.shown_policy()), integer_cell(job.batch_size)};
  if (!r.infeasible.empty()) {
    cells.resize(short_columns().size() - 1, null_cell());
    cells.push_back(text_cell(r.infeasible));
    return cells;
  }
  const auto number = [](double value) {
    return TableCell{.text = fmt::format("{:.4g}", value), .number = true};
  };
  const auto& steps = r.phase_steps;
  cells.push_back(text_cell(dtype_name(r.kv_dtype)));
  cells.push_back(number(r.tokens_per_second));
  cells.push_back(number(r.seconds));
  cells.push_back(integer_cell(r.max_running));
  cells.push_back(number(r.lanes.compute + r.lanes.recompute));
  cells.push_back(number(std::max(r.lanes.h2d, r.lanes.d2h)));
  cells.push_back(text_cell(fmt::format("{}/{}/{}", steps[0], steps[1], steps[2])));
  cells.push_back(text_cell(named.detail));
  return cells;
}

// The policy as its options say. Attention is sparse under triphase alone, as elsewhere.
NamedSimulation simulate_given(const std::string& name, const std::vector<std::string>& options,
                               const CostModel& cost, SimulatedJob job) {
  RunOptions run;
  run.machine.policy = name.substr(0, name.find(':'));
  run.machine.policy_options = options;
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
  const PlannedModel model = open_planned_model(values, attention);
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
  std::vector<std::vector<TableCell>> rows;
  for (const std::int64_t batch : integer_list(values, "batch-size", 1, 1 << 20)) {
    SimulatedJob job{
        .model = model.costs,
        .weights_dtype = model.dtype,
        .kv_dtype = kv_dtype,
        .block_tokens = default_block_tokens(kv_dtype),
        .device_memory =
            values.has("device-memory") ? values.size("device-memory") : profile.device_memory,
        .host_memory = values.has("host-memory") ? values.size("host-memory") : profile.host_memory,
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
                             : simulate_given(name, own->second, cost, job);
      named.policy = name;
      rows.push_back(for_people ? short_row(named, job) : row(named, model, profile, job));
    }
  }
  if (for_people) {
    print(fmt::format("{} on {}, {} + {} tokens (more columns: --format json)\n\n", model.name,
                      profile.name, values.integer("input-len"), values.integer("output-len")));
  }
  print(format_table(values.text("format"), for_people ? short_columns() : columns(), rows));
  return 0;
}

}  // namespace triphase
