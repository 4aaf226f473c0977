// `triphase eval`: perplexity and task accuracy, every attention method through the decode path.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "runtime/engine/loaded_model.h"
#include "runtime/eval/attention_analysis.h"
#include "runtime/eval/eval.h"
#include "runtime/eval/generation_tasks.h"
#include "runtime/eval/sweep.h"
#include "runtime/job/file_ops.h"
#include "runtime/options/parse_run_options.h"
#include "runtime/signals.h"
#include "tools/commands.h"
#include "tools/eval_options.h"

namespace triphase {
namespace {

using bench::Row;

constexpr std::uint64_t kMaxDataBytes = std::uint64_t{1} << 30;

// KV bytes that decoded tokens read, as a share of dense attention's.
double touched_share(const AttentionRunner* attention, const KvStore::Shape& kv) {
  if (attention == nullptr) return 1.0;
  const AttentionRunner::ReadBytes bytes = attention->read_bytes(kv.dtype);
  return bytes.dense == 0.0 ? 1.0 : bytes.touched / bytes.dense;
}

// Squeezed attention is of a fixed context, and a fixed context of prompts.
void check_fixed_context(const OptionValues& values, const std::vector<eval::SweepCell>& cells) {
  const std::string task = values.text("task");
  if (values.has("fixed-context") && task != "exact-match" && task != "summarize") {
    throw Error(ErrorRole::kUsage, "E-CLI-CONFLICT", "--fixed-context")
        .found("with --task " + task)
        .expected("--task exact-match or summarize: the others make their own prompts");
  }
  const bool squeezed = std::ranges::any_of(cells, [](const eval::SweepCell& cell) {
    return cell.attention.kind == AttentionKind::kSqueezed;
  });
  if (squeezed && !values.has("fixed-context")) refuse_squeezed_alone();
}

bench::ReportFormat report_format(const std::string& name) {
  if (name == "csv") return bench::ReportFormat::kCsv;
  if (name == "json") return bench::ReportFormat::kJson;
  if (name == "jsonl") return bench::ReportFormat::kJsonLines;
  return bench::ReportFormat::kMarkdown;
}

// The model of one `eval`, loaded once, and one combination of the sweep at a time around it.
class Evaluation {
 public:
  Evaluation(const OptionValues& values, const RunOptions& options, Log& log, Progress& progress)
      : values_(values),
        options_(options),
        log_(log),
        progress_(progress),
        bundle_(open_model(options)),
        backend_(Backend::open(options.device, options.threads)),
        cells_(eval::sweep_cells(sweep_lists(values), bundle_.config, bundle_.weights_dtype)) {
    for (const std::string& note : bundle_.notes) log.info(note);
    check_fixed_context(values, cells_);
    if (bundle_.tokenizer == nullptr) {
      throw Error(ErrorRole::kModel, "E-TOK-NONE", "tokenizer")
          .file(options.model)
          .found("none")
          .expected("a tokenizer: tasks are texts");
    }
    setup_.config = &bundle_.config;
    setup_.tokenizer = bundle_.tokenizer.get();
    setup_.data_path = values.text("data");
    setup_.samples = values.integer("samples");
    setup_.seed = static_cast<std::uint64_t>(values.integer("seed"));
    setup_.on_progress = [&progress](std::uint64_t done, std::uint64_t total) {
      if (stop_requested()) {
        progress.finish();
        die_by_signal(stop_signal());
      }
      ProgressState state;
      state.done = done;
      state.total = total;
      progress.update(state);
    };
    // What does not fit is refused before the first combination, not after hours.
    for (const eval::SweepCell& cell : cells_) plan_cell(cell);
    set_lengths(values, context_, setup_);
  }

  [[nodiscard]] const std::vector<eval::SweepCell>& cells() const { return cells_; }

  std::vector<Row> run(const eval::SweepCell& cell, const std::string& data) {
    const RunOptions options = options_of(cell);
    const RunPlan plan = plan_run(options, bundle_, backend_->machine());
    log_.info(describe(plan, bundle_));
    if (weights_ == nullptr || !weights_->lie_as(plan)) {
      weights_ = nullptr;  // before the others are there: together they may not fit
      progress_.begin_phase("loading model");
      weights_ =
          std::make_shared<LoadedWeights>(bundle_, options, plan, *backend_, progress_, log_);
    }
    LoadedModel loaded(weights_, bundle_, options, plan, *backend_);
    const PromptPreparer preparer(bundle_.config, bundle_.tokenizer.get(),
                                  {.context = bundle_.most_positions(),
                                   .kv_tokens = context_,
                                   .fixed_context = bundle_.context_tokens()});
    Engine engine({.batch_size = plan.memory.batch_size, .prefill_chunk = plan.prefill_chunk},
                  *plan.policy, loaded.decoder, loaded.kv, preparer, bundle_.tokenizer.get(),
                  backend_->threads(), backend_->stream());
    setup_.engine = &engine;
    setup_.kv_token_bytes = KvStore::page_bytes(plan.kv) /
                            static_cast<std::uint64_t>(plan.kv.block_tokens) *
                            static_cast<std::uint64_t>(plan.kv.layers);
    progress_.begin_phase(
        fmt::format("{}, {} attention", values_.text("task"), attention_name(cell.attention.kind)));
    std::vector<Row> rows = run_task(loaded, data);
    setup_.engine = nullptr;
    const AttentionRunner* attention = loaded.decoder.attention();
    const double share = touched_share(attention, plan.kv);
    const bool counted = attention != nullptr && attention->touched().context > 0;
    for (Row& row : rows) {
      for (auto& [name, value] : row) {
        if (auto* bytes = std::get_if<double>(&value); bytes && name == "kv_bytes_per_token") {
          *bytes *= share;
        }
      }
      row.emplace_back(
          "tokens_touched",
          counted ? attention->touched().attended / attention->touched().context : 1.0);
      eval::label_row(cell, kv_dtype_name(plan.kv), row);
    }
    return rows;
  }

 private:
  [[nodiscard]] RunOptions options_of(const eval::SweepCell& cell) const {
    RunOptions options = options_;
    const bool watched = values_.text("task") == "attention";
    options.attention = watched ? eval::observable(cell.attention) : cell.attention;
    options.kv_dtype = cell.kv_dtype;
    return options;
  }

  void plan_cell(const eval::SweepCell& cell) {
    const RunPlan plan = plan_run(options_of(cell), bundle_, backend_->machine());
    const std::int64_t fits =
        std::min(bundle_.config.max_positions, plan.memory.kv_tokens_per_sequence);
    context_ = context_ == 0 ? fits : std::min(context_, fits);
  }

  std::vector<Row> run_task(LoadedModel& loaded, const std::string& data) {
    const std::string task = values_.text("task");
    if (task == "perplexity") return eval::perplexity(setup_, data);
    if (task == "repetition") {
      return eval::repetition(setup_, {values_.integer("cue-len"), values_.integer("answer-len")},
                              data);
    }
    if (task == "needle") return eval::needle(setup_, needle_options(values_, context_), data);
    if (task == "attention") {
      return eval::attention_analysis(setup_, *loaded.decoder.attention(), data);
    }
    if (task == "choice") {
      const ScorePreparer preparer(
          bundle_.config, bundle_.tokenizer.get(),
          {.context = bundle_.config.max_positions, .kv_tokens = context_, .decodes = true});
      return eval::choice(setup_, preparer, data);
    }
    return eval::generate_and_compare(
        setup_, {task == "summarize", values_.integer("max-tokens"), values_.texts("stop")}, data);
  }

  const OptionValues& values_;
  const RunOptions& options_;
  Log& log_;
  Progress& progress_;
  ModelBundle bundle_;
  std::unique_ptr<Backend> backend_;
  std::vector<eval::SweepCell> cells_;
  std::int64_t context_ = 0;  // that fits with every cell
  std::shared_ptr<LoadedWeights> weights_;
  eval::Setup setup_;
};

void make_folder(const std::string& path) {
  std::error_code failed;
  std::filesystem::create_directories(path, failed);
  if (failed) throw_io_error(path, "open", failed.value());
}

void write_files(const std::filesystem::path& folder, const std::string& task,
                 const std::vector<Row>& rows, bool several_cells) {
  const auto write = [&](const char* name, std::string_view text) {
    write_file_atomically(system_file_ops(), folder / name, text, 0666);
  };
  write("eval.json", bench::format_report(rows, bench::ReportFormat::kJson, false));
  write("eval.csv", bench::format_report(rows, bench::ReportFormat::kCsv, false));
  write("eval.svg", eval::sweep_chart(task, rows, several_cells));
}

}  // namespace

int cmd_eval(const Arguments& arguments, std::unique_ptr<Log>& log) {
  const OptionValues values = begin_command("eval", arguments, log);
  RunOptions options;
  parse_machine_options(values, options);
  const std::string data = read_small_file(system_file_ops(), values.text("data"), kMaxDataBytes);
  const std::string task = values.text("task");
  Progress progress(*log, options.progress);
  Evaluation evaluation(values, options, *log, progress);
  const bool several = evaluation.cells().size() > 1;
  if (values.has("output")) make_folder(values.text("output"));
  std::vector<Row> rows;
  for (const eval::SweepCell& cell : evaluation.cells()) {
    for (Row& row : evaluation.run(cell, data)) rows.push_back(std::move(row));
    // A sweep that is stopped keeps what it has.
    if (values.has("output")) write_files(values.text("output"), task, rows, several);
  }
  progress.finish();
  print(bench::format_report(rows, report_format(values.text("format")),
                             /*zero_is_missing=*/false));
  if (values.has("svg")) {
    write_file_atomically(system_file_ops(), values.text("svg"),
                          eval::sweep_chart(task, rows, several), 0666);
  }
  return 0;
}

}  // namespace triphase
