// `triphase profile`: measures this machine with a model, once, for planner and simulator.

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "runtime/calibrate/measure_miss_rate.h"
#include "runtime/job/file_ops.h"
#include "runtime/job/prompt_file.h"
#include "runtime/options/parse_run_options.h"
#include "runtime/plan/miss_rate.h"
#include "runtime/plan/profile_file.h"
#include "runtime/profile/profiler.h"
#include "runtime/refuse.h"
#include "runtime/table_writer.h"
#include "tools/commands.h"

namespace triphase {
namespace {

RunOptions run_options(const OptionValues& values) {
  RunOptions options;
  read_model_options(values, options);
  std::error_code failed;
  options.weights.random = !std::filesystem::is_directory(options.files.model, failed);
  options.machine.host_memory = values.optional_size("host-memory");
  options.machine.kv_dtype = dtype_from_name(values.text("kv-dtype"));
  if (values.has("emulate-link")) {
    options.machine.emulated_link = link_option(values.text("emulate-link"));
  }
  return options;
}

// Under which sparse method decode steps are measured too, and of which prompts its miss rate.
void read_attention_options(const OptionValues& values, RunOptions& options) {
  options.files.prompts = values.text("prompts");
  options.attention.kind = attention_from_name(values.text("attention"));
  if (!options.attention.sparse()) {
    for (const char* option : {"prompts", "attention-option", "kv-sparsity"}) {
      if (!values.given(option)) continue;
      refuse_conflict(fmt::format("--{}", option), "with --attention dense",
                      "a sparse --attention, such as swa or sparq");
    }
    return;
  }
  check_needs_no_context(options.attention);
  if (values.has("prompts") && options.weights.random) {
    refuse_conflict("--prompts", "with random weights",
                    "a model directory: random weights choose by chance");
  }
  read_attention_options(values, options.attention);
}

// Before the machine's times, so that what cannot be measured is known early.
std::vector<MissRate> miss_rates(const RunOptions& options, const Workplace& place) {
  const PromptFileFacts prompts = examine_prompt_file(options);
  if (!prompts.rereadable) refuse_conflict("--prompts", "a pipe", "a file: its lines are sampled");
  const std::optional<MissRate> rate = measure_miss_rate(options, prompts, place);
  if (!rate) return {};
  place.log.info(describe(*rate));
  return {*rate};
}

TableRow row(const ProfiledTable& table) {
  const Repeatability& r = table.repeatability;
  return {{"table", table.name},
          {"cells", r.cells},
          {"continued_cells", r.filled},
          {"samples", r.samples},
          {"outliers_dropped", r.dropped},
          {"spread_percent", 100.0 * r.spread},
          {"rounds_apart_percent", 100.0 * r.rounds},
          {"rounds_apart_worst_percent", 100.0 * r.rounds_worst},
          {"seconds", r.seconds}};
}

}  // namespace

int cmd_profile(const Arguments& arguments, std::unique_ptr<Log>& log) {
  const OptionValues values = begin_command("profile", arguments, log);
  RunOptions options = run_options(values);
  read_attention_options(values, options);
  const std::string output = values.text("output");
  const ModelBundle model = open_model(options);
  for (const std::string& note : model.notes) log->info(note);
  const auto backend = Backend::open_for_job(options.machine);
  Progress progress(*log, options.looking.progress);
  std::vector<MissRate> rates;
  const Workplace place{model, *backend, progress, *log};
  if (values.has("prompts")) rates = miss_rates(options, place);
  const std::string kv = values.text("kv-dtype");
  const ProfileRequest request{.seconds = values.seconds("time"),
                               .batch_size = values.integer("batch-size"),
                               .context = values.integer("max-context"),
                               .int8_kv = kv == "auto" || kv == "int8",
                               .attention = options.attention,
                               .name = values.text("name")};
  log->info(fmt::format("measuring {} for about {:g} s on {}; link: {}", options.files.model,
                        request.seconds, device_identity(*backend),
                        link_identity(*backend, options.machine.emulated_link)));
  MeasuredProfile measured = measure_profile(options, request, place);
  measured.profile.miss_rates = std::move(rates);
  progress.finish();
  write_file_atomically(system_file_ops(), output, profile_to_json(measured.profile), 0644);
  std::vector<TableRow> rows;
  for (const ProfiledTable& table : measured.tables) rows.push_back(row(table));
  print(format_table(values.text("format"), rows));
  log->info(verdict(measured, output));
  return 0;
}

}  // namespace triphase
