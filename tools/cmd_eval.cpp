// `triphase eval`: perplexity and task accuracy, every attention method through the decode path.

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/eval/eval.h"
#include "runtime/eval/generation_tasks.h"
#include "runtime/eval/svg_chart.h"
#include "runtime/file_ops.h"
#include "runtime/loaded_model.h"
#include "runtime/options/parse_run_options.h"
#include "runtime/signals.h"
#include "scheduler/placement/device_only_policy.h"
#include "tools/commands.h"

namespace triphase {
namespace {

using bench::Row;

constexpr std::uint64_t kMaxDataBytes = std::uint64_t{1} << 30;
constexpr std::int64_t kNeedleLengths = 4;  // the context, and halves of it

// KV bytes that decoded tokens read, as a share of dense attention's at the mean context.
double touched_share(const AttentionRunner* attention, const ModelConfig& config,
                     const KvStore::Shape& kv) {
  if (attention == nullptr || attention->touched().rows == 0.0) return 1.0;
  const AttentionRunner::Touched& touched = attention->touched();
  const auto context = static_cast<std::int64_t>(touched.context / touched.rows);
  const auto attended = static_cast<std::int64_t>(touched.attended / touched.rows);
  const TouchedShape shape{config.heads, config.kv_heads, config.head_dim,
                           static_cast<std::int64_t>(dtype_bytes(kv.dtype))};
  return static_cast<double>(
             touched_bytes(attention->method().options(), shape, context, attended)) /
         static_cast<double>(touched_bytes(AttentionOptions{}, shape, context, context));
}

template <class Number, class Read>
std::vector<Number> number_list(const OptionValues& values, std::string_view option,
                                std::string_view expected, const Read& read) {
  std::vector<Number> numbers;
  const std::string all = values.text(option);
  std::string_view text = all;
  for (;;) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::optional<Number> number = read(text.substr(0, comma));
    if (!number) {
      throw Error(ErrorRole::kUsage, "E-CLI-OPTION", fmt::format("--{}", option))
          .found(text.substr(0, comma))
          .expected(expected);
    }
    numbers.push_back(*number);
    if (comma == text.size()) return numbers;
    text.remove_prefix(comma + 1);
  }
}

eval::NeedleOptions needle_options(const OptionValues& values, std::int64_t context) {
  eval::NeedleOptions options;
  if (values.has("needle")) options.needle = values.text("needle");
  if (values.has("question")) options.question = values.text("question");
  options.depths = number_list<double>(
      values, "depths", "numbers from 0 to 1, separated by commas", [](std::string_view text) {
        const std::optional<double> depth = read_real(text);
        return depth && *depth >= 0.0 && *depth <= 1.0 ? depth : std::nullopt;
      });
  if (values.has("lengths")) {
    options.lengths = number_list<std::int64_t>(
        values, "lengths", fmt::format("integers from 2 to {}, separated by commas", context),
        [context](std::string_view text) {
          const std::optional<std::int64_t> length = read_integer(text);
          return length && *length >= 2 && *length <= context ? length : std::nullopt;
        });
  } else {
    for (std::int64_t part = kNeedleLengths; part > 0; --part) {
      options.lengths.push_back(context >> (part - 1));
    }
  }
  return options;
}

// --window and --prefill-len against the model's context.
void set_lengths(const OptionValues& values, std::int64_t context, eval::Setup& setup) {
  const std::int64_t window = values.integer("window");
  setup.window = window == 0 ? context : window;
  if (setup.window > context || setup.window < 4) {
    throw Error(ErrorRole::kUsage, "E-CLI-OPTION", "--window")
        .found(fmt::to_string(setup.window))
        .expected(fmt::format("4 to {}, the context that fits", context));
  }
  setup.prefill_len = values.has("prefill-len") ? values.integer("prefill-len") : setup.window / 2;
  if (setup.prefill_len > setup.window - 2) {
    throw Error(ErrorRole::kUsage, "E-CLI-OPTION", "--prefill-len")
        .found(fmt::to_string(setup.prefill_len))
        .expected(fmt::format("at most {}, two less than the window", setup.window - 2));
  }
}

bench::ReportFormat report_format(const std::string& name) {
  if (name == "csv") return bench::ReportFormat::kCsv;
  if (name == "json") return bench::ReportFormat::kJson;
  if (name == "jsonl") return bench::ReportFormat::kJsonLines;
  return bench::ReportFormat::kMarkdown;
}

// The number of a row that the task is about, by its name.
std::string score_name(const std::string& task) {
  if (task == "choice") return "accuracy";
  if (task == "exact-match") return "exact_match";
  if (task == "summarize") return "rouge_l";
  return task;
}

double number_of(const Row& row, std::string_view name) {
  for (const auto& [key, value] : row) {
    if (key != name) continue;
    if (const auto* real = std::get_if<double>(&value)) return *real;
    if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
  }
  return 0.0;
}

void write_chart(const std::string& path, const std::string& task, const std::vector<Row>& rows) {
  const std::string score = score_name(task);
  eval::Chart chart{
      fmt::format("{} against KV bytes read", task), "KV bytes read per token", score, {}};
  for (const Row& row : rows) {
    chart.points.push_back({number_of(row, "kv_bytes_per_token"), number_of(row, score),
                            number_of(row, score + "_stderr"),
                            std::get<std::string>(row.at(1).second)});
  }
  write_file_atomically(system_file_ops(), path, eval::svg_chart(chart), 0666);
}

// What the tasks compute with, in the order it must be made.
struct Evaluation {
  Evaluation(const OptionValues& values, const RunOptions& options, Log& log, Progress& progress)
      : bundle(open_model(options)), backend(Backend::open(options.device, options.threads)) {
    for (const std::string& note : bundle.notes) log.info(note);
    if (bundle.tokenizer == nullptr) {
      throw Error(ErrorRole::kModel, "E-TOK-NONE", "tokenizer")
          .file(options.model)
          .found("none")
          .expected("a tokenizer: tasks are texts");
    }
    plan = plan_run(options, bundle, backend->threads().threads(), LogitRows::kAll);
    log.info(describe(plan, bundle));
    context = std::min(bundle.config.max_positions, plan.memory.kv_tokens_per_sequence);
    set_lengths(values, context, setup);
    progress.begin_phase("loading model");
    loaded.emplace(bundle, options, plan, *backend, progress, log);
    scorer.emplace(Scorer::Options{plan.memory.batch_size, plan.prefill_chunk}, loaded->decoder,
                   loaded->kv, backend->threads(), backend->stream());
    setup.config = &bundle.config;
    setup.tokenizer = bundle.tokenizer.get();
    setup.scorer = &*scorer;
    setup.kv_token_bytes = KvStore::page_bytes(plan.kv) /
                           static_cast<std::uint64_t>(plan.kv.block_tokens) *
                           static_cast<std::uint64_t>(plan.kv.layers);
  }

  std::vector<Row> run(const OptionValues& values, const std::string& data) {
    const std::string task = values.text("task");
    if (task == "perplexity") return eval::perplexity(setup, data);
    if (task == "repetition") {
      return eval::repetition(setup, {values.integer("cue-len"), values.integer("answer-len")},
                              data);
    }
    if (task == "needle") return eval::needle(setup, needle_options(values, context), data);
    if (task == "choice") {
      const ScorePreparer preparer(bundle.config, bundle.tokenizer.get(),
                                   {.context = bundle.config.max_positions, .kv_tokens = context});
      return eval::choice(setup, preparer, data);
    }
    const PromptPreparer preparer(bundle.config, bundle.tokenizer.get(),
                                  {.context = bundle.config.max_positions, .kv_tokens = context});
    const DeviceOnlyPolicy policy;
    Engine engine({.batch_size = plan.memory.batch_size, .prefill_chunk = plan.prefill_chunk},
                  policy, loaded->decoder, loaded->kv, preparer, bundle.tokenizer.get(),
                  backend->threads(), backend->stream());
    return eval::generate_and_compare(
        setup, {task == "summarize", values.integer("max-tokens"), values.texts("stop")}, engine,
        data);
  }

  ModelBundle bundle;
  std::unique_ptr<Backend> backend;
  RunPlan plan;
  std::int64_t context = 0;
  std::optional<LoadedModel> loaded;
  std::optional<Scorer> scorer;
  eval::Setup setup;
};

}  // namespace

int cmd_eval(const Arguments& arguments, std::unique_ptr<Log>& log) {
  const OptionValues values = begin_command("eval", arguments, log);
  RunOptions options;
  parse_machine_options(values, options);
  const std::string data = read_small_file(system_file_ops(), values.text("data"), kMaxDataBytes);
  Progress progress(*log, options.progress);
  Evaluation evaluation(values, options, *log, progress);
  evaluation.setup.data_path = values.text("data");
  evaluation.setup.samples = values.integer("samples");
  evaluation.setup.seed = static_cast<std::uint64_t>(values.integer("seed"));
  evaluation.setup.on_progress = [&progress](std::uint64_t done, std::uint64_t total) {
    if (stop_requested()) {
      progress.finish();
      die_by_signal(stop_signal());
    }
    ProgressState state;
    state.done = done;
    state.total = total;
    progress.update(state);
  };
  std::vector<Row> rows;
  const std::string method(attention_name(options.attention.kind));
  progress.begin_phase(fmt::format("{}, {} attention", values.text("task"), method));
  for (Row& row : evaluation.run(values, data)) {
    row.insert(row.begin() + 1, {"attention", method});
    row.emplace_back("kv_dtype", std::string(kv_dtype_name(evaluation.plan.kv)));
    const AttentionRunner* attention = evaluation.loaded->decoder.attention();
    if (attention != nullptr && attention->touched().context > 0) {
      row.emplace_back("tokens_touched",
                       attention->touched().attended / attention->touched().context);
    }
    const double share = touched_share(attention, evaluation.bundle.config, evaluation.plan.kv);
    for (auto& [name, value] : row) {
      if (auto* bytes = std::get_if<double>(&value); bytes && name == "kv_bytes_per_token") {
        *bytes *= share;
      }
    }
    rows.push_back(std::move(row));
  }
  progress.finish();
  print(bench::format_report(rows, report_format(values.text("format")),
                             /*zero_is_missing=*/false));
  if (values.has("svg")) write_chart(values.text("svg"), values.text("task"), rows);
  return 0;
}

}  // namespace triphase
