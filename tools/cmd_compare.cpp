// `triphase compare`: one job under several policies, attention methods and batch sizes. Every cell
// is a `triphase run` of its own. Cells take turns, so a machine that grows slower or faster
// meanwhile does so for all cells.

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "runtime/build_info.h"
#include "runtime/compare/report_page.h"
#include "runtime/compare/verdict.h"
#include "runtime/generate.h"
#include "runtime/job/file_ops.h"
#include "runtime/options/option_names.h"
#include "runtime/options/parse_run_options.h"
#include "runtime/refuse.h"
#include "runtime/table_writer.h"
#include "tools/commands.h"

namespace triphase {
namespace {

using compare::Cell;
using compare::Row;

std::vector<Row> make_rows(const OptionValues& values) {
  std::vector<Row> rows;
  const std::vector<std::string> policies = option_choices(values, "policies", "policy", true);
  const std::vector<std::string> methods = option_choices(values, "attention", "attention");
  refuse_stray_options(values.texts("attention-option"), methods);
  // As they were written: cells and files have their names.
  const auto batches =
      option_list<std::string>(values, "batch-size", "integers of at least 0, separated by commas",
                               [](const std::string& text) -> std::optional<std::string> {
                                 if (read_integer(text).value_or(-1) < 0) return std::nullopt;
                                 return text;
                               });
  // Cells that are equal would write the same files.
  refuse_repeats("policies", policies);
  refuse_repeats("attention", methods);
  refuse_repeats("batch-size", batches);
  for (const std::string& batch : batches) {
    for (const std::string& attention : methods) {
      for (const std::string& policy : policies) {
        rows.push_back({.cell = {policy, attention, batch}});
      }
    }
  }
  return rows;
}

constexpr const char* kTable = "compare.json";
constexpr const char* kTableCsv = "compare.csv";
constexpr const char* kPage = "index.html";

// The folder of a comparison and the names of its files.
class Folder {
 public:
  explicit Folder(const std::string& path) : path_(path), folder_(path), runs_(path_ / "runs") {}
  [[nodiscard]] std::string run(const Cell& cell, const std::string& suffix) const {
    return path_ / "runs" /
           fmt::format("{}-{}-{}{}", cell.policy, cell.attention, cell.batch_size, suffix);
  }
  void write(const char* name, std::string_view text) const {
    write_file_atomically(system_file_ops(), path_ / name, text, 0666);
  }
  // An earlier comparison's report, whose runs new ones take the place of.
  void remove_report() const {
    for (const char* name : {kTable, kTableCsv, kPage}) {
      const std::string path = path_ / name;
      if (system_file_ops().unlink(path.c_str()) != 0 && errno != ENOENT) {
        throw_io_error(path, "remove", errno);
      }
    }
  }

 private:
  std::filesystem::path path_;
  OutputFolder folder_;
  OutputFolder runs_;
};

// Every cell reads the prompts from their beginning. What is no file at all the first run refuses.
void refuse_pipe(const std::string& prompts) {
  std::error_code failed;
  const std::filesystem::file_type type = std::filesystem::status(prompts, failed).type();
  if (prompts != "-" && type != std::filesystem::file_type::fifo &&
      type != std::filesystem::file_type::socket) {
    return;
  }
  refuse_option("--prompts", prompts == "-" ? "-" : prompts + ", a pipe",
                "a file: every cell reads it anew");
}

// The option of a run that was given for all of them; null: none, or one that cells have their own
// of.
const OptionSpec* given_for_runs(const OptionValues& values, const std::string& name) {
  constexpr std::string_view kOfCell[] = {"attention", "batch-size", "output"};
  const OptionSpec* option = find_option(*find_command("run"), name);
  const bool for_runs = option != nullptr && option->group != kMessages && values.given(name) &&
                        std::ranges::find(kOfCell, name) == std::end(kOfCell);
  return for_runs ? option : nullptr;
}

// Dense attention has no budget. Beside methods that have one its cells do without; alone they
// refuse it as a run does.
bool spares(const OptionValues& values, const Cell& cell, std::string_view option) {
  return cell.attention == "dense" && values.text("attention") != "dense" &&
         (option == "kv-sparsity" || option == "max-divergence");
}

// What the user gave for every run, and what this one adds.
Arguments run_arguments(const OptionValues& values, const std::vector<std::string>& policy_options,
                        const Cell& cell, const std::string& output) {
  // "flexgen:cpu" is flexgen with options of its own.
  Arguments arguments = {"--policy=" + cell.policy.substr(0, cell.policy.find(':')),
                         "--attention=" + cell.attention, "--batch-size=" + cell.batch_size,
                         "--output=" + output, "--overwrite"};
  for (const std::string& text : policy_options) arguments.push_back("--policy-option=" + text);
  for (const auto& [name, value] : values.all()) {
    if (given_for_runs(values, name) == nullptr || name == "policy-option") continue;
    for (const std::string& text : value.texts) {
      if (name == "attention-option") {
        if (is_option_of(text, cell.attention)) {
          arguments.push_back("--attention-option=" + text);
        }
      } else if (!spares(values, cell, name)) {
        arguments.push_back(fmt::format("--{}={}", name, text));
      }
    }
  }
  return arguments;
}

class Comparison {
 public:
  Comparison(const OptionValues& values, Log& log)
      : values_(values),
        log_(log),
        progress_(log, value_of(kProgressNames, values.text("progress")).value()),
        rows_(make_rows(values)),
        policy_options_(policy_options(values, option_choices(values, "policies", "policy", true))),
        folder_(values.text("output")) {
    log.show_warnings_once();  // those of the prompt file come with every cell
  }

  int run() {
    refuse_contradictions();
    folder_.remove_report();
    const std::int64_t repeats = values_.integer("repeat");
    // One traced repetition first, which also warms the machine up.
    for (Row& row : rows_) {
      if (row.infeasible.empty()) run_traced(row);
    }
    for (std::int64_t repeat = 0; repeat < repeats; ++repeat) {
      for (Row& row : rows_) {
        if (!row.infeasible.empty()) continue;
        begin_run(row.cell, fmt::format("repetition {} of {}", repeat + 1, repeats));
        row.timed.push_back(run_once(row.cell, ""));
        log_.info(fmt::format("{} ({} of {}): {:.1f} generated tok/s", row.cell.label(), repeat + 1,
                              repeats, row.timed.back().tokens_per_second));
      }
    }
    progress_.finish();
    compare_completions();
    write_report();
    return end();
  }

 private:
  void run_cell(const Cell& cell, const std::string& extra) {
    const auto own = policy_options_.find(cell.policy);
    Arguments arguments =
        run_arguments(values_, own == policy_options_.end() ? Arguments() : own->second, cell,
                      folder_.run(cell, ".jsonl"));
    if (!extra.empty()) arguments.push_back(extra);
    // It has had its say in this command's own options. And a cell is a whole job, also in an
    // element of a Slurm array.
    const auto no_environment = [](const char*) -> const char* { return nullptr; };
    const OptionValues run_values = parse_options(*find_command("run"), arguments, no_environment);
    Log quiet(log_, /*verbosity=*/-1);
    const RunOptions options = parse_run_options(run_values, no_environment);
    try {
      (void)generate(options, progress_, quiet);
    } catch (Error& error) {
      // A run of its own could be resumed.
      if (error.hint().ends_with(resume_hint(options))) {
        error.hint("once that is mended, the same command compares anew");
      }
      throw;
    }
  }

  // Counts the run among the runs of all cells that can run, as far as that is known.
  void begin_run(const Cell& cell, std::string_view what) {
    const std::int64_t cells =
        std::ranges::count_if(rows_, [](const Row& row) { return row.infeasible.empty(); });
    const std::int64_t all = cells * (1 + values_.integer("repeat"));
    const double share = 1.0 / static_cast<double>(all);
    const double from = static_cast<double>(runs_++) * share;
    progress_.begin_part(fmt::format("run {} of {} ({}, {})", runs_, all, cell.label(), what), from,
                         from + share);
  }

  // Options that contradict each other in the last cell are to be told before the first one runs.
  // A policy that cannot do with an attention method or a KV type that others of the table can is
  // no such contradiction: its cell cannot run.
  void refuse_contradictions() {
    std::vector<std::pair<Row*, Error>> excluded;
    std::set<std::string> possible;  // attention methods
    progress_.begin_part("checking the cells' options", 0.0, 0.0);
    for (Row& row : rows_) {
      try {
        run_cell(row.cell, "--dry-run");
      } catch (const Error& error) {
        if (error.code() == "E-DEV-NONE") throw;
        if (error.role() == ErrorRole::kResources) continue;
        if (!excludes(error)) throw;
        excluded.emplace_back(&row, error);
        continue;
      }
      possible.insert(row.cell.attention);
    }
    for (const auto& [row, error] : excluded) {
      if (!possible.contains(row->cell.attention)) throw Error(error);
      cannot_run(*row, error);
    }
  }

  // Whether the policy excludes the cell's attention method or KV type.
  [[nodiscard]] static bool excludes(const Error& error) {
    return error.code() == "E-CLI-CONFLICT" &&
           (error.field() == "--attention" || error.field() == "--kv-dtype");
  }

  void cannot_run(Row& row, const Error& error) {
    row.infeasible = error.found();
    if (!error.expected().empty()) row.infeasible += ", expected " + error.expected();
    log_.info(fmt::format("{} cannot run: {}", row.cell.label(), row.infeasible));
  }

  compare::Measured run_once(const Cell& cell, const std::string& trace) {
    run_cell(cell, trace.empty() ? "" : "--trace=" + trace);
    return compare::read_summary(folder_.run(cell, ".jsonl") + ".summary.json");
  }

  void run_traced(Row& row) {
    const std::string trace = folder_.run(row.cell, ".trace.json");
    begin_run(row.cell, "traced");
    try {
      (void)run_once(row.cell, trace);
    } catch (const Error& error) {
      if (error.role() != ErrorRole::kResources) throw;
      cannot_run(row, error);
      --runs_;
      return;
    }
    row.traced = compare::read_trace(trace);
    log_.info(fmt::format("{}: traced", row.cell.label()));
  }

  // Equal attention at an equal KV type, projected from the same inputs, gives equal completions,
  // wherever KV lives and however large the batch is (on a GPU but for close calls); other
  // attention is as near to dense as it is.
  void compare_completions() {
    std::vector<compare::Completions> completions;
    for (Row& row : rows_) {
      completions.push_back(
          row.infeasible.empty()
              ? compare::read_completions(folder_.run(row.cell, ".jsonl"), row.failures)
              : compare::Completions{});
    }
    for (std::size_t index = 0; index < rows_.size(); ++index) {
      Row& row = rows_[index];
      if (!row.infeasible.empty()) continue;
      for (std::size_t other = 0; other < rows_.size(); ++other) {
        const Row& before = rows_[other];
        if (!before.infeasible.empty()) continue;
        const bool same_type =
            before.median().kv_dtype == row.median().kv_dtype &&
            before.median().cached_hidden_states == row.median().cached_hidden_states;
        if (other < index && !row.same_as && same_type &&
            before.cell.attention == row.cell.attention) {
          row.same_as = before.cell.label();
          row.identical = compare::identical(completions[other], completions[index]);
        }
        if (!row.agreement && same_type && before.cell.attention == "dense") {
          row.agreement = compare::agreement(completions[other], completions[index]);
        }
      }
    }
  }

  // What was given for every cell, as one would give it again.
  [[nodiscard]] std::vector<std::string> given_options() const {
    std::vector<std::string> given;
    for (const auto& [name, value] : values_.all()) {
      const OptionSpec* option = given_for_runs(values_, name);
      if (option == nullptr || name == "model" || name == "prompts" || name == "progress") continue;
      for (const std::string& text : value.texts) {
        given.push_back(option->type == OptionType::kFlag && text == "true"
                            ? "--" + name
                            : fmt::format("--{} {}", name, text));
      }
    }
    return given;
  }

  void write_report() const {
    std::vector<TableRow> table;
    for (const Row& row : rows_) table.push_back(table_row(row));
    folder_.write(kTable, format_table("json", table));
    folder_.write(kTableCsv, format_table("csv", table));
    compare::PageFacts facts{.facts = {}, .options = given_options()};
    facts.facts.push_back("model: " + values_.text("model"));
    facts.facts.push_back("prompts: " + values_.text("prompts"));
    for (const Row& row : rows_) {
      if (!row.infeasible.empty()) continue;
      facts.facts.push_back("device: " + row.median().device);
      break;
    }
    facts.facts.push_back(fmt::format("repetitions: {}, cells in turns, after one traced run each",
                                      values_.integer("repeat")));
    facts.facts.push_back(fmt::format("triphase {} {}", program_version(), build_commit()));
    folder_.write(kPage, compare::report_page(facts, rows_));
  }

  // Of a cell that cannot run, most are null.
  [[nodiscard]] TableRow table_row(const Row& row) const {
    const bool ran = row.infeasible.empty();
    const bool speed = row.has_speed();
    const compare::Measured run = ran ? row.median() : compare::Measured{};
    const compare::LaneSeconds& lanes = row.traced.seconds;
    const auto text = [ran](const std::string& value) {
      return ran ? TableValue(value) : TableValue();
    };
    const auto number = [ran](double value) { return ran ? TableValue(value) : TableValue(); };
    const auto count = [ran](auto value) {
      return ran ? TableValue(static_cast<std::int64_t>(value)) : TableValue();
    };
    const auto samples = [&row](double compare::Measured::*field) {
      std::vector<double> values;
      for (const compare::Measured& one : row.timed) values.push_back(one.*field);
      return values;
    };
    std::vector<std::string> failures;
    for (const compare::Failure& failure : row.failures) failures.push_back(failure.text());
    return {{"policy", row.cell.policy},
            {"attention", row.cell.attention},
            {"batch_size", *read_integer(row.cell.batch_size)},
            {"kv_dtype", text(run.kv_dtype)},
            {"tokens_per_second", speed ? number(run.tokens_per_second) : TableValue()},
            {"slowest", speed ? number(row.slowest()) : TableValue()},
            {"fastest", speed ? number(row.fastest()) : TableValue()},
            {"prefill_seconds", number(run.prefill_seconds)},
            {"decode_seconds", number(run.decode_seconds)},
            {"compute_seconds", number(lanes.compute)},
            {"waiting_seconds", number(lanes.waiting)},
            {"host_seconds", number(lanes.host)},
            {"to_device_seconds", number(lanes.to_device)},
            {"to_host_seconds", number(lanes.to_host)},
            {"to_device_bytes", count(run.to_device_bytes)},
            {"to_host_bytes", count(run.to_host_bytes)},
            {"device_peak_bytes", count(run.device_peak_bytes)},
            {"host_peak_bytes", count(run.host_peak_bytes)},
            {"preemptions", count(run.preemptions)},
            {"failed_lines", count(run.failed_lines)},
            {"failures",
             failures.empty() ? TableValue() : text(fmt::format("{}", fmt::join(failures, "; ")))},
            {"max_batch", count(run.max_batch)},
            {"tokens_attended", number(run.tokens_attended)},
            {"agreement", row.agreement ? number(*row.agreement) : TableValue()},
            {"same_as", row.same_as ? text(*row.same_as) : TableValue()},
            {"identical", row.identical ? text(*row.identical ? "yes" : "no") : TableValue()},
            {"emulated", text(fmt::format("{}", fmt::join(run.emulated, ", ")))},
            {"infeasible", ran ? TableValue() : row.infeasible},
            {"tokens_per_second_samples",
             speed ? samples(&compare::Measured::tokens_per_second) : std::vector<double>()},
            {"prefill_seconds_samples", samples(&compare::Measured::prefill_seconds)},
            {"decode_seconds_samples", samples(&compare::Measured::decode_seconds)},
            {"model", values_.text("model")},
            {"model_fingerprint", text(run.model_fingerprint)},
            {"machine", text(run.machine)},
            {"commit", std::string(build_commit())}};
  }

  [[nodiscard]] int end() const {
    for (const auto& [sentence, remark] : compare::verdicts(rows_)) {
      log_.info(sentence + (remark.empty() ? "" : " " + remark));
    }
    for (const Row& row : rows_) {
      if (!row.wrong()) continue;
      throw Error(ErrorRole::kInternal, "E-INT-CHECK", "completions")
          .found(fmt::format("{} differs from {}", row.cell.label(), row.same_as.value_or("")))
          .expected("the same completions: placement must not change them");
    }
    const bool any =
        std::ranges::any_of(rows_, [](const Row& row) { return row.infeasible.empty(); });
    log_.info(fmt::format("{}/index.html, compare.json and compare.csv are written",
                          values_.text("output")));
    if (!any) {
      throw Error(ErrorRole::kResources, "E-MEM-FIT", rows_.front().cell.label())
          .found(rows_.front().infeasible)
          .expected("a cell that can run");
    }
    return 0;
  }

  const OptionValues& values_;
  Log& log_;
  Progress progress_;
  std::vector<Row> rows_;
  std::map<std::string, std::vector<std::string>> policy_options_;
  Folder folder_;
  std::int64_t runs_ = 0;  // begun
};

}  // namespace

int cmd_compare(const Arguments& arguments, std::unique_ptr<Log>& log) {
  const OptionValues values = begin_command("compare", arguments, log);
  refuse_pipe(values.text("prompts"));
  return Comparison(values, *log).run();
}

}  // namespace triphase
