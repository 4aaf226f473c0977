// `triphase eval`: perplexity and task accuracy, every attention method through the decode path.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>

#include "base/error.h"
#include "runtime/build_info.h"
#include "runtime/engine/gpu_limits.h"
#include "runtime/engine/loaded_model.h"
#include "runtime/eval/attention_analysis.h"
#include "runtime/eval/eval.h"
#include "runtime/eval/generation_tasks.h"
#include "runtime/eval/sweep.h"
#include "runtime/job/file_ops.h"
#include "runtime/machine.h"
#include "runtime/options/option_parser.h"
#include "runtime/options/parse_run_options.h"
#include "runtime/plan/workload.h"
#include "runtime/refuse.h"
#include "tools/commands.h"

namespace triphase {
namespace {

// The options of `triphase eval` that are more than one value: lists of a sweep, lengths of its
// windows, cells of the needle task. Everything wrong is E-CLI-OPTION or E-CLI-CONFLICT.

constexpr std::int64_t kNeedleLengths = 4;  // the context, and halves of it

// "0.125" or "1/8".
std::optional<double> read_share(std::string_view text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) return read_real(text);
  const std::optional<std::int64_t> over = read_integer(text.substr(0, slash));
  const std::optional<std::int64_t> under = read_integer(text.substr(slash + 1));
  if (!over || !under || *under <= 0) return std::nullopt;
  return static_cast<double>(*over) / static_cast<double>(*under);
}

eval::SweepLists sweep_lists(const OptionValues& values) {
  if (values.has("kv-sparsity") && values.has("compression")) {
    refuse_conflict("--kv-sparsity", "together with --compression", "only one of them");
  }
  eval::SweepLists lists;
  lists.attentions = option_choices(values, "attention", "attention");
  lists.attention_options = values.texts("attention-option");
  lists.window = values.integer("window");
  if (values.has("kv-sparsity")) {
    lists.sparsities = option_list<double>(
        values, "kv-sparsity", "numbers from 0 to 0.999, separated by commas; 0.8 leaves out 80 %",
        [](std::string_view text) {
          const std::optional<double> share = read_real(text);
          return share && *share >= 0.0 && *share <= kMaxSparsity ? share : std::nullopt;
        });
  }
  if (values.has("compression")) {
    lists.compressions = option_list<double>(
        values, "compression", "shares above 0, at most 1, such as 1/8, separated by commas",
        [](std::string_view text) {
          const std::optional<double> share = read_share(text);
          return share && *share > 0.0 && *share <= 1.0 ? share : std::nullopt;
        });
  }
  for (const std::string& name : option_choices(values, "kv-dtype", "kv-dtype")) {
    lists.kv_dtypes.push_back(dtype_from_name(name));
  }
  return lists;
}

// `context`: the model's.
eval::NeedleOptions needle_options(const OptionValues& values, std::int64_t context) {
  eval::NeedleOptions options;
  if (values.has("needle")) options.needle = values.text("needle");
  if (values.has("question")) options.question = values.text("question");
  options.depths = option_list<double>(
      values, "depths", "numbers from 0 to 1, separated by commas", [](std::string_view text) {
        const std::optional<double> depth = read_real(text);
        return depth && *depth >= 0.0 && *depth <= 1.0 ? depth : std::nullopt;
      });
  if (values.has("lengths")) {
    options.lengths = integer_list(values, "lengths", 2, context);
  } else {
    for (std::int64_t part = kNeedleLengths; part > 0; --part) {
      options.lengths.push_back(context >> (part - 1));
    }
  }
  return options;
}

// --window and --prefill-len against the model's context. Memory has no say: a score of other
// windows is another score.
void set_lengths(const OptionValues& values, std::int64_t context, eval::Setup& setup) {
  const std::int64_t window = values.integer("window");
  setup.window = window == 0 ? context : window;
  if (setup.window > context || setup.window < 4) {
    refuse_option("--window", fmt::to_string(setup.window),
                  fmt::format("4 to {}, the model's context", context));
  }
  setup.prefill_len = values.has("prefill-len") ? values.integer("prefill-len") : setup.window / 2;
  if (setup.prefill_len > setup.window - 2) {
    refuse_option("--prefill-len", fmt::to_string(setup.prefill_len),
                  fmt::format("at most {}, two less than the window", setup.window - 2));
  }
}

using bench::Row;

constexpr std::uint64_t kMaxDataBytes = std::uint64_t{1} << 30;

// KV bytes that decoded tokens read, as a share of dense attention's.
double attended_share(const AttentionRunner* attention) {
  if (attention == nullptr) return 1.0;
  const AttentionRunner::ReadBytes bytes = attention->read_bytes();
  return bytes.dense == 0.0 ? 1.0 : bytes.attended / bytes.dense;
}

// Squeezed attention is of a fixed context, and a fixed context of prompts.
void check_fixed_context(const OptionValues& values, const std::vector<eval::SweepCell>& cells) {
  const std::string task = values.text("task");
  if (values.has("fixed-context") && task != "exact-match" && task != "summarize") {
    refuse_conflict("--fixed-context", "with --task " + task,
                    "--task exact-match or summarize: the others make their own prompts");
  }
  if (values.has("fixed-context")) return;
  for (const eval::SweepCell& cell : cells) check_needs_no_context(cell.attention);
}

std::string machine_name(Backend& backend) {
  const std::string cpu = inspect_machine().cpu_name;
  return backend.machine().gpu ? fmt::format("{}, {}", backend.ops().name(), cpu) : "cpu: " + cpu;
}

// The model of one `eval`, loaded once, and one combination of the sweep at a time around it.
class Evaluation {
 public:
  Evaluation(const OptionValues& values, const RunOptions& options, const eval::SweepLists& lists,
             const std::string& data, Log& log, Progress& progress)
      : values_(values),
        options_(options),
        bundle_(open_model(options)),
        backend_(Backend::open_for_job(options.machine)),
        place_{bundle_, *backend_, progress, log},
        machine_(machine_name(*backend_)),
        cells_(eval::sweep_cells(
            lists, bundle_.config,
            kv_dtype_on(backend_->machine(), std::nullopt, bundle_.weights_dtype))) {
    for (const eval::SweepCell& cell : cells_) {
      keep_within_windows(options_of(cell).attention, bundle_);
    }
    for (const std::string& note : bundle_.notes) log.info(note);
    check_fixed_context(values, cells_);
    if (bundle_.tokenizer == nullptr) {
      throw Error(ErrorRole::kModel, "E-TOK-NONE", "tokenizer")
          .file(options.files.model)
          .found("none")
          .expected("a tokenizer: tasks are texts");
    }
    setup_.config = &bundle_.config;
    setup_.tokenizer = bundle_.tokenizer.get();
    setup_.data_path = values.text("data");
    setup_.samples = values.integer("samples");
    setup_.seed = static_cast<std::uint64_t>(values.integer("seed"));
    setup_.on_progress = [&progress](std::uint64_t done, std::uint64_t total) {
      progress.update_items(done, total);
    };
    if (values.text("task") == "attention") {
      require_gpu_scores(backend_->machine(), bundle_.config, "--task", "attention");
    }
    set_lengths(values, bundle_.config.max_positions, setup_);
    // What does not fit is refused before the first combination, not after hours.
    longest_ = longest_request(data);
    for (const eval::SweepCell& cell : cells_) plan_cell(cell);
    check_memory();
  }

  [[nodiscard]] const std::vector<eval::SweepCell>& cells() const { return cells_; }

  eval::ScoredCell run(const eval::SweepCell& cell, const std::string& data) {
    const RunOptions options = options_of(cell);
    const RunPlan plan = plan_run(options, bundle_, backend_->machine());
    place_.log.info(describe(plan, bundle_));
    load_for(options, plan, place_, weights_);
    LoadedModel loaded(weights_, options, plan, place_);
    const PromptPreparer preparer = prompt_preparer();
    Engine engine(plan, loaded, place_, &preparer);
    setup_.engine = &engine;
    setup_.kv_token_bytes = plan.kv.page_bytes() /
                            static_cast<std::uint64_t>(plan.kv.block_tokens) *
                            static_cast<std::uint64_t>(plan.kv.layers);
    place_.progress.begin_phase(values_.text("task"));
    eval::ScoredCell scored{.dense = !cell.attention.sparse(),
                            .kv_dtype = std::string(dtype_name(plan.kv.dtype)),
                            .rows = {},
                            .samples = {}};
    setup_.row_samples = &scored.samples;
    scored.rows = run_task(loaded, data);
    setup_.row_samples = nullptr;
    setup_.engine = nullptr;
    const AttentionRunner* attention = loaded.decoder.attention().runner();
    const double share = attended_share(attention);
    const bool counted = attention != nullptr && attention->token_counts().context > 0;
    for (Row& row : scored.rows) {
      for (auto& [name, value] : row) {
        if (auto* bytes = std::get_if<double>(&value); bytes && name == "kv_bytes_per_token") {
          *bytes *= share;
        }
      }
      row.emplace_back(
          "tokens_attended",
          counted ? attention->token_counts().attended / attention->token_counts().context : 1.0);
      eval::label_row(cell, scored.kv_dtype, row);
      row.emplace_back("model", values_.text("model"));
      row.emplace_back("model_fingerprint", bundle_.identity.fingerprint);
      row.emplace_back("machine", machine_);
      row.emplace_back("commit", std::string(build_commit()));
    }
    return scored;
  }

 private:
  [[nodiscard]] RunOptions options_of(const eval::SweepCell& cell) const {
    RunOptions options = options_;
    const bool watched = values_.text("task") == "attention";
    options.attention = watched ? eval::observable(cell.attention) : cell.attention;
    options.machine.kv_dtype = cell.kv_dtype;
    options.machine.held_tokens = longest_;
    return options;
  }

  [[nodiscard]] PromptPreparer prompt_preparer() const {
    return {bundle_.config, bundle_.tokenizer.get(), prompt_limits(options_, bundle_, context_)};
  }
  [[nodiscard]] ScorePreparer score_preparer() const {
    return {bundle_.config, bundle_.tokenizer.get(), score_limits(options_, bundle_, context_)};
  }
  [[nodiscard]] eval::GenerationOptions generation_options() const {
    return {values_.text("task") == "summarize", values_.integer("max-tokens"),
            values_.texts("stop")};
  }
  [[nodiscard]] eval::NeedleOptions needles() const {
    return needle_options(values_, bundle_.config.max_positions);
  }

  // Whether the data has a prompt a line, and not a text that is cut into windows.
  [[nodiscard]] bool has_lines() const {
    const std::string task = values_.text("task");
    return task == "choice" || task == "exact-match" || task == "summarize";
  }

  // Tokens of KV that the task's longest sequence needs.
  [[nodiscard]] std::int64_t longest_request(const std::string& data) const {
    const std::string task = values_.text("task");
    if (task == "needle") return std::ranges::max(needles().lengths);
    if (task == "choice") return eval::longest_choice(setup_, score_preparer(), data);
    if (!has_lines()) return setup_.window;
    return eval::longest_completion(setup_, generation_options(), prompt_preparer(), data);
  }

  // A smaller batch makes room for the longest sequence, where no batch is asked for.
  void plan_cell(const eval::SweepCell& cell) {
    const RunPlan plan = plan_run(options_of(cell), bundle_, backend_->machine());
    context_ = std::min(context_, plan.longest_request);
  }

  void check_memory() const {
    if (longest_ <= context_) return;
    const char* option = values_.text("task") == "needle" ? "--lengths" : "--window";
    Error error(ErrorRole::kResources, "E-MEM-FIT", has_lines() ? "the longest line" : option);
    if (has_lines()) error.file(setup_.data_path);
    throw error.found(fmt::format("{} tokens", longest_))
        .expected(fmt::format("at most {}, whose KV fits memory", context_))
        .hint(fmt::format("raise --device-memory{}{}",
                          options_.machine.batch_size > 1 ? ", lower --batch-size" : "",
                          has_lines() ? "" : fmt::format(", or {} {} fits", option, context_)));
  }

  std::vector<Row> run_task(LoadedModel& loaded, const std::string& data) {
    const std::string task = values_.text("task");
    if (task == "perplexity") return eval::perplexity(setup_, data);
    if (task == "repetition") {
      return eval::repetition(setup_, {values_.integer("cue-len"), values_.integer("answer-len")},
                              data);
    }
    if (task == "needle") return eval::needle(setup_, needles(), data);
    if (task == "attention") {
      return eval::attention_analysis(setup_, *loaded.decoder.attention().runner(), data);
    }
    if (task == "choice") return eval::choice(setup_, score_preparer(), data);
    return eval::generate_and_compare(setup_, generation_options(), data);
  }

  const OptionValues& values_;
  const RunOptions& options_;
  ModelBundle bundle_;
  std::unique_ptr<Backend> backend_;
  Workplace place_;
  std::string machine_;
  std::vector<eval::SweepCell> cells_;
  std::int64_t longest_ = 0;  // sequence of the task, in tokens of KV
  // Tokens of a sequence whose KV fits memory with every cell; before they are planned any number.
  std::int64_t context_ = std::numeric_limits<std::int64_t>::max();
  std::shared_ptr<LoadedWeights> weights_;
  eval::Setup setup_;
};

void write_files(const std::filesystem::path& folder, const std::vector<Row>& rows) {
  const auto write = [&](const char* name, std::string_view text) {
    write_file_atomically(system_file_ops(), folder / name, text, 0666);
  };
  write("eval.json", bench::format_report(rows, "json", false));
  write("eval.csv", bench::format_report(rows, "csv", false));
}

void print_rows(const OptionValues& values, const std::string& task, const std::vector<Row>& rows) {
  const std::string format = values.text("format");
  if (format != "md") {
    print(bench::format_report(rows, format, /*zero_is_missing=*/false));
    return;
  }
  print(fmt::format("{} of {} on {} (more columns: --format json)\n\n{}", task,
                    values.text("model"), values.text("data"),
                    bench::format_report(eval::readable_rows(task, rows), format, false)));
}

}  // namespace

int cmd_eval(const Arguments& arguments, std::unique_ptr<Log>& log) {
  const OptionValues values = begin_command("eval", arguments, log);
  const RunOptions options = parse_eval_options(values);
  const eval::SweepLists lists = sweep_lists(values);
  const std::string data = read_small_file(system_file_ops(), values.text("data"), kMaxDataBytes);
  const std::string task = values.text("task");
  Progress progress(*log, options.looking.progress);
  Evaluation evaluation(values, options, lists, data, *log, progress);
  std::optional<OutputFolder> folder;
  if (values.has("output")) folder.emplace(values.text("output"));
  std::vector<eval::ScoredCell> scored;
  std::vector<Row> rows;
  const std::vector<eval::SweepCell>& cells = evaluation.cells();
  for (std::size_t at = 0; at < cells.size(); ++at) {
    const eval::SweepCell& cell = cells[at];
    const auto parts = static_cast<double>(cells.size());
    progress.begin_part(
        fmt::format("cell {} of {} ({})", at + 1, cells.size(), eval::cell_label(cell)),
        static_cast<double>(at) / parts, static_cast<double>(at + 1) / parts);
    scored.push_back(evaluation.run(cell, data));
    rows = eval::sweep_rows(task, scored);
    // A sweep that is stopped keeps what it has.
    try {
      if (values.has("output")) write_files(values.text("output"), rows);
    } catch (const Error&) {
      // Hours may be in them: a full disk must not take them along.
      progress.finish();
      print_rows(values, task, rows);
      throw;
    }
  }
  progress.finish();
  print_rows(values, task, rows);
  return 0;
}

}  // namespace triphase
