// `triphase inspect`: what a model directory holds, from its headers alone.

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "base/json_writer.h"
#include "models/model_summary.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/loaded_model.h"
#include "runtime/engine/model_hint.h"
#include "runtime/engine/nan_logits.h"
#include "runtime/eval/attention_map.h"
#include "runtime/job/file_ops.h"
#include "runtime/log.h"
#include "runtime/options/option_parser.h"
#include "runtime/options/parse_run_options.h"
#include "runtime/progress.h"
#include "tools/commands.h"

namespace triphase {
namespace {

// `triphase inspect --attention-map`: completes one prompt greedily and draws which tokens the
// attention method attended in one layer and KV head.

void check_below(const OptionValues& values, const char* option, std::int64_t count) {
  if (values.integer(option) < count) return;
  throw Error(ErrorRole::kUsage, "E-CLI-OPTION", fmt::format("--{}", option))
      .found(fmt::to_string(values.integer(option)))
      .expected(fmt::format("at most {}", count - 1));
}

// Tokens of the prompt.
std::int64_t complete(const OptionValues& values, const RunPlan& plan, const ModelBundle& model,
                      LoadedModel& loaded, Backend& backend) {
  const PromptPreparer preparer(model.config, model.tokenizer.get(),
                                {.context = model.most_positions(),
                                 .kv_tokens = plan.memory.kv_tokens_per_sequence,
                                 .fixed_context = model.context_tokens()});
  Engine engine({.batch_size = 1, .prefill_chunk = plan.prefill_chunk}, *plan.policy,
                loaded.decoder, loaded.kv, preparer, model.tokenizer.get(), backend);
  Request request;
  request.text = values.text("prompt");
  request.sampling.max_tokens = values.integer("max-tokens");
  request.sampling.ignore_eos = true;
  const Completion completion = engine.run_all(std::vector{std::move(request)}).front();
  if (completion.error && completion.error->code == "E-NUM-LOGITS") {
    throw nan_logits(values.text("model"), "NaN or infinity");
  }
  if (completion.error) {
    throw Error(ErrorRole::kInput, completion.error->code, "prompt")
        .found(completion.error->message)
        .expected("a prompt that fits");
  }
  return completion.prompt_tokens;
}

// `values` of inspect, with --attention-map. Writes the SVG; returns what is to be said on stdout.
std::string draw_attention_map(const OptionValues& values, Log& log) {
  RunOptions options = parse_inspect_options(values);
  if (!options.attention.sparse()) {
    throw Error(ErrorRole::kUsage, "E-CLI-CONFLICT", "--attention-map")
        .found("with --attention dense, which attends every token")
        .expected("a sparse --attention, such as swa or sparq");
  }
  options.machine.batch_size = 1;
  const ModelBundle model = open_model(options);
  for (const std::string& note : model.notes) log.info(note);
  check_below(values, "layer", model.config.layers);
  check_below(values, "head", model.config.kv_heads);
  const auto backend = Backend::open_for_job(options.machine);
  const RunPlan plan = plan_run(options, model, backend->machine());
  Progress progress(log, options.looking.progress);
  progress.begin_phase("loading model");
  LoadedModel loaded(model, options, plan, *backend, progress, log);
  eval::AttentionMapRecorder recorder(values.integer("layer"), values.integer("head"));
  AttentionRunner& runner = *loaded.decoder.attention().runner();
  runner.set_observer(&recorder);
  progress.begin_phase("generating");
  const std::int64_t prompt_tokens = complete(values, plan, model, loaded, *backend);
  progress.finish();
  const eval::AttentionMapCounts counts = eval::count_changes(recorder.steps());
  const double share = counts.context == 0 ? 1.0
                                           : static_cast<double>(counts.attended) /
                                                 static_cast<double>(counts.context);
  const std::string what = fmt::format(
      "{}: layer {}{}", attention_name(options.attention.kind), values.integer("layer"),
      runner.method().lists() == 1 ? ", all heads"
                                   : fmt::format(", KV head {}", values.integer("head")));
  if (counts.attended == counts.context) {
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
      "{}: {} decode steps after {} prompt tokens, {:.1f} % of the tokens attended; tokens left "
      "the choice {} times and came back {} times\n",
      what, recorder.steps().size(), prompt_tokens, 100 * share, counts.left, counts.returned);
}

std::string bytes_text(std::uint64_t bytes) {
  return bytes < 1024 ? format_bytes(bytes)
                      : fmt::format("{} ({} bytes)", format_bytes(bytes), bytes);
}

std::string as_text(const ModelSummary& summary) {
  const ModelConfig& config = summary.config;
  std::string out;
  const auto line = [&out](std::string_view name, const std::string& value) {
    out += fmt::format("{:<18}{}\n", name, value);
  };
  line("architecture", fmt::format("{} ({})", escape_untrusted(summary.architecture),
                                   escape_untrusted(summary.model_type)));
  line("layers", fmt::to_string(config.layers));
  line("hidden size", fmt::format("{}, feed-forward {}", config.hidden_size, config.ffn_size));
  if (const ExpertConfig& experts = config.experts; experts.count > 0) {
    line("experts", fmt::format("{} in a layer, {} for each token, feed-forward {}", experts.count,
                                experts.per_token, experts.ffn_size));
  }
  line("heads", fmt::format("{} of {} channels, {} for keys and values", config.heads,
                            config.head_dim, config.kv_heads));
  line("vocabulary", fmt::to_string(config.vocab_size));
  line("context", fmt::format("{} tokens", config.max_positions));
  line("parameters", fmt::to_string(summary.parameters));
  line("weights", fmt::format("{} as {}", bytes_text(summary.weight_bytes),
                              dtype_name(summary.weights_dtype)));
  for (const KvCost& cost : summary.kv) {
    std::string windows;
    if (cost.within_windows < cost.full_context) {
      windows = fmt::format(", {} within its windows", format_bytes(cost.within_windows));
    }
    line("KV per token",
         fmt::format("{} as {}, {} at full context{}", bytes_text(cost.bytes_per_token),
                     dtype_name(cost.dtype), format_bytes(cost.full_context), windows));
  }
  if (!summary.weight_files.empty()) {
    line("files", fmt::format("{} with {} tensors, {}", summary.weight_files.size(),
                              summary.tensor_count, bytes_text(summary.file_bytes)));
  }
  for (const DtypeShare& share : summary.dtypes) {
    line("  of type",
         fmt::format("{}: {} tensors, {}", share.name, share.tensors, bytes_text(share.bytes)));
  }
  std::string tokenizer;
  for (const std::string& file : summary.tokenizer_files) {
    tokenizer += (tokenizer.empty() ? "" : ", ") + escape_untrusted(file);
  }
  line("tokenizer", tokenizer.empty() ? "none (prompts must be token ids)" : tokenizer);
  for (const std::string& note : summary.notes) line("note", note);
  return out;
}

std::string as_json(const ModelSummary& summary) {
  const ModelConfig& config = summary.config;
  std::string out;
  JsonWriter json(out, JsonWriter::Layout::kLines);
  json.begin_object();
  json.members({{"format", "triphase-inspect/1"},
                {"model_type", summary.model_type},
                {"architecture", summary.architecture},
                {"layers", config.layers},
                {"hidden_size", config.hidden_size},
                {"ffn_size", config.ffn_size},
                {"heads", config.heads},
                {"kv_heads", config.kv_heads},
                {"head_dim", config.head_dim},
                {"vocab_size", config.vocab_size},
                {"max_positions", config.max_positions},
                {"parameters", summary.parameters},
                {"weight_bytes", summary.weight_bytes},
                {"weights_dtype", dtype_name(summary.weights_dtype)}});
  if (const ExpertConfig& experts = config.experts; experts.count > 0) {
    json.members({{"experts", experts.count},
                  {"experts_per_token", experts.per_token},
                  {"expert_ffn_size", experts.ffn_size}});
  }
  json.key("kv_bytes_per_token").begin_object();
  for (const KvCost& cost : summary.kv) json.member(dtype_name(cost.dtype), cost.bytes_per_token);
  json.end();
  json.key("weight_files").array(summary.weight_files);
  json.member("file_bytes", summary.file_bytes);
  json.key("tokenizer_files").array(summary.tokenizer_files);
  json.key("notes").array(summary.notes);
  json.key("tensors").begin_array(JsonWriter::Layout::kLines);
  for (const TensorSummary& tensor : summary.tensors) {
    json.begin_object().members({{"name", tensor.name}, {"dtype", tensor.dtype}});
    json.key("shape").array(tensor.shape);
    json.members({{"bytes", tensor.bytes}, {"file", tensor.file}}).end();
  }
  json.end().end();
  return out + "\n";
}

}  // namespace

int cmd_inspect(const Arguments& arguments, std::unique_ptr<Log>& log) {
  const OptionValues values = begin_command("inspect", arguments, log);
  if (values.has("attention-map")) {
    print(draw_attention_map(values, *log));
    return 0;
  }
  const std::string model = values.text("model");
  ModelSummary summary;
  if (const std::optional<ModelConfig> shape = builtin_shape(model)) {
    summary = summarise_shape(*shape);
  } else {
    try {
      summary = summarise_model(open_model_directory(model));
    } catch (Error& error) {
      if (error.hint().empty()) error.hint(model_hint(model));
      throw;
    }
  }
  print(values.text("format") == "json" ? as_json(summary) : as_text(summary));
  return 0;
}

}  // namespace triphase
