#include "tools/attention_map.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/loaded_model.h"
#include "runtime/eval/attention_map.h"
#include "runtime/job/file_ops.h"
#include "runtime/options/parse_run_options.h"
#include "runtime/signals.h"

namespace triphase {
namespace {

constexpr std::uint64_t kMostPromptBytes = std::uint64_t{64} << 20;

std::string prompt_of(const OptionValues& values) {
  if (values.has("prompt") == values.has("prompt-file")) {
    throw Error(ErrorRole::kUsage, "E-CLI-CONFLICT", "--attention-map")
        .found(values.has("prompt") ? "--prompt and --prompt-file" : "no prompt")
        .expected("one of --prompt and --prompt-file");
  }
  return values.has("prompt")
             ? values.text("prompt")
             : read_small_file(system_file_ops(), values.text("prompt-file"), kMostPromptBytes);
}

void check_below(const OptionValues& values, const char* option, std::int64_t count) {
  if (values.integer(option) < count) return;
  throw Error(ErrorRole::kUsage, "E-CLI-OPTION", fmt::format("--{}", option))
      .found(fmt::to_string(values.integer(option)))
      .expected(fmt::format("at most {}", count - 1));
}

// Tokens of the prompt.
std::int64_t complete(const OptionValues& values, const RunPlan& plan, const ModelBundle& model,
                      LoadedModel& loaded, Backend& backend, std::string prompt) {
  const PromptPreparer preparer(model.config, model.tokenizer.get(),
                                {.context = model.most_positions(),
                                 .kv_tokens = plan.memory.kv_tokens_per_sequence,
                                 .fixed_context = model.context_tokens()});
  Engine engine({.batch_size = 1, .prefill_chunk = plan.prefill_chunk}, *plan.policy,
                loaded.decoder, loaded.kv, preparer, model.tokenizer.get(), backend.threads(),
                backend.stream());
  Request request;
  request.text = std::move(prompt);
  request.sampling.max_tokens = values.integer("max-tokens");
  request.sampling.ignore_eos = true;
  const Completion completion = engine
                                    .run_all(std::vector{std::move(request)},
                                             [](auto&&...) {
                                               if (stop_requested()) die_by_signal(stop_signal());
                                             })
                                    .front();
  if (completion.error) {
    throw Error(ErrorRole::kInput, completion.error->code, "prompt")
        .found(completion.error->message)
        .expected("a prompt that fits");
  }
  return completion.prompt_tokens;
}

}  // namespace

std::string draw_attention_map(const OptionValues& values, Log& log) {
  RunOptions options;
  parse_machine_options(values, options);
  if (options.attention.kind == AttentionKind::kDense) {
    throw Error(ErrorRole::kUsage, "E-CLI-CONFLICT", "--attention-map")
        .found("with --attention dense, which touches every token")
        .expected("a sparse --attention, such as swa or sparq");
  }
  std::string prompt = prompt_of(values);
  options.batch_size = 1;
  const ModelBundle model = open_model(options);
  for (const std::string& note : model.notes) log.info(note);
  check_below(values, "layer", model.config.layers);
  check_below(values, "head",
              lists_by_query_head(options.attention) ? model.config.heads : model.config.kv_heads);
  const auto backend = Backend::open(options.device, options.threads);
  const RunPlan plan = plan_run(options, model, backend->machine());
  Progress progress(log, options.progress);
  progress.begin_phase("loading model");
  LoadedModel loaded(model, options, plan, *backend, progress, log);
  eval::AttentionMapRecorder recorder(values.integer("layer"), values.integer("head"));
  AttentionRunner& runner = *loaded.decoder.attention();
  runner.set_observer(&recorder);
  progress.begin_phase("generating");
  const std::int64_t prompt_tokens =
      complete(values, plan, model, loaded, *backend, std::move(prompt));
  progress.finish();
  const eval::AttentionMapCounts counts = eval::count_changes(recorder.steps());
  const double share = counts.context == 0 ? 1.0
                                           : static_cast<double>(counts.touched) /
                                                 static_cast<double>(counts.context);
  const std::string what = fmt::format(
      "{}: layer {}{}", attention_name(options.attention.kind), values.integer("layer"),
      runner.method().lists() == 1
          ? ", all heads"
          : fmt::format(", {} head {}",
                        runner.method().lists() > model.config.kv_heads ? "query" : "KV",
                        values.integer("head")));
  if (counts.touched == counts.context) {
    log.info(
        fmt::format("{} attends densely in every step of layer {}: see another --layer, or a "
                    "higher --kv-sparsity",
                    attention_name(options.attention.kind), values.integer("layer")));
  }
  // Without the slash that a shell's completion leaves behind a folder.
  const std::filesystem::path folder =
      std::filesystem::path(values.text("model") + "/").parent_path();
  const std::string model_name = folder.filename();
  write_file_atomically(system_file_ops(), values.text("attention-map"),
                        eval::attention_map_svg(
                            {.title = fmt::format("Tokens attended by {}", what),
                             .subtitle = fmt::format(
                                 "{}: {} prompt tokens, {} decode steps, {:.1f} % of the tokens "
                                 "attended",
                                 model_name, prompt_tokens, recorder.steps().size(), 100 * share)},
                            prompt_tokens, recorder.steps()),
                        0666);
  return fmt::format(
      "{}: {} decode steps after {} prompt tokens, {:.1f} % of the tokens touched; tokens left the "
      "choice {} times and came back {} times\n",
      what, recorder.steps().size(), prompt_tokens, 100 * share, counts.left, counts.returned);
}

}  // namespace triphase
