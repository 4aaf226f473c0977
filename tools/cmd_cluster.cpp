// `triphase cluster`: key clusters of a text that will stand in front of every prompt.

#include <fmt/format.h>

#include <algorithm>

#include "base/content_hash.h"
#include "base/error.h"
#include "base/format_bytes.h"
#include "runtime/context/build_context.h"
#include "runtime/context/context_file.h"
#include "runtime/engine/gpu_limits.h"
#include "runtime/options/parse_run_options.h"
#include "tools/commands.h"

namespace triphase {
namespace {

constexpr std::uint64_t kMaxContextBytes = std::uint64_t{1} << 30;
constexpr std::int64_t kPrefillChunk = 256;

ClusterOptions cluster_options(const OptionValues& values) {
  return {.centroids = values.real("centroids"),
          .coarse_centroids = values.real("coarse-centroids"),
          .levels = values.integer("levels"),
          .quantile = values.real("sparsity"),
          .coarse_quantile = values.real("coarse-sparsity"),
          .pruned_calibration = values.text("calibrate") == "pruned",
          .window = values.integer("window"),
          .seed = static_cast<std::uint64_t>(values.integer("seed"))};
}

// One sequence, all its KV on the device.
RunOptions model_options(const OptionValues& values) {
  RunOptions options;
  read_model_options(values, options);
  read_weight_options(values, options);
  options.machine.kv_dtype = dtype_from_name(values.text("kv-dtype"));
  options.machine.policy = "device-only";
  options.machine.batch_size = 1;
  const std::int64_t chunk = values.integer("prefill-chunk");
  options.machine.prefill_chunk = chunk > 0 ? chunk : kPrefillChunk;
  // Prompts are dense under every method; this one makes their keys visible layer by layer.
  options.attention.kind = attention_from_name("local");
  return options;
}

void check_length(const OptionValues& values, std::int64_t tokens, const ModelBundle& model) {
  const std::int64_t window = values.integer("window");
  Error error(ErrorRole::kInput, "E-IN-FIXED", "context");
  error.file(values.text("context")).found(fmt::format("{} tokens", tokens));
  if (tokens <= window) {
    throw error.expected(fmt::format("more than the {} of --window", window));
  }
  // A prompt of one token and its completion must have room behind it.
  const std::int64_t most = model.most_positions_behind_context();
  if (tokens > most - 2) {
    throw error.expected(fmt::format(
        "at most {}: the model's {} is {} tokens", most - 2,
        most < model.config.max_positions ? "original context, without RoPE scaling," : "context",
        most));
  }
}

void check_memory(const RunPlan& plan, std::int64_t tokens) {
  if (plan.longest_request >= tokens) return;
  throw Error(ErrorRole::kResources, "E-MEM-FIT", "context")
      .found(fmt::format("{} tokens", tokens))
      .expected(fmt::format("at most {}, whose KV fits the device's memory", plan.longest_request))
      .hint("raise --device-memory");
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100.0 * share); }

// What was made, for people.
std::string report(const FixedContext& context, const OptionValues& values,
                   const ContextFileSizes& sizes) {
  const ContextClusters& clusters = context.clusters;
  const ClusterOptions& options = context.options;
  const CalibrationFacts& facts = context.calibration;
  const bool two = options.levels == 2;
  std::string out =
      fmt::format("{}: {} tokens of {}, {} of them clustered; the last {} are always attended\n",
                  values.text("output"), context.tokens.size(), values.text("context"),
                  clusters.clustered_tokens, options.window);
  out += fmt::format("clusters: {} in each of {} layers x {} KV heads{}\n", clusters.fine.count,
                     context.shape.layers, context.shape.kv_heads,
                     two ? fmt::format(", in {} groups", clusters.coarse.count) : "");
  out += fmt::format("threshold: {:.4g}, below which {} of the keys lie\n", clusters.fine.threshold,
                     percent(options.quantile));
  if (two) {
    out += fmt::format("threshold of groups: {:.4g}, below which {} of the keys lie\n",
                       clusters.coarse.threshold, percent(options.coarse_quantile));
  }
  out += fmt::format(
      "kept by the last {} tokens as queries: {} of the clustered keys{}\n", facts.queries,
      percent(facts.kept_share),
      two ? fmt::format("; with two levels {}, looking up centroids for {}",
                        percent(facts.kept_share_levels2), percent(facts.looked_up_share))
          : "");
  out += fmt::format("{} on disk, {} in memory\n", format_bytes(sizes.json + sizes.data),
                     format_bytes(cluster_bytes(clusters)));
  return out;
}

}  // namespace

int cmd_cluster(const Arguments& arguments, std::unique_ptr<Log>& log) {
  const OptionValues values = begin_command("cluster", arguments, log);
  RunOptions options = model_options(values);
  const std::string file = values.text("context");
  const std::string text = read_small_file(system_file_ops(), file, kMaxContextBytes);
  const ModelBundle model = open_model(options);
  for (const std::string& note : model.notes) log->info(note);
  const ContextForm form{.token_ids = values.text("context-format") == "ids",
                         .no_special = values.flag("no-special")};
  std::vector<TokenId> tokens = context_tokens(model, text, form, file);
  const auto length = std::ssize(tokens);
  check_length(values, length, model);
  options.machine.max_context = length;
  const auto backend = Backend::open_for_job(options.machine);
  require_gpu_scores(backend->machine(), model.config, "--device", "clusters");
  const RunPlan plan = plan_run(options, model, backend->machine());
  check_memory(plan, length);
  // Minutes of work must not end in a place that cannot be written.
  const OutputFolder folder(values.text("output"));
  Progress progress(*log, options.looking.progress);
  progress.begin_phase("loading model");
  const Workplace place{model, *backend, progress, *log};
  LoadedModel loaded(options, plan, place);
  FixedContext context =
      build_fixed_context(std::move(tokens), cluster_options(values), plan, loaded, place);
  if (!form.token_ids) context.tokenizer_fingerprint = model.identity.tokenizer;
  context.text_hash = hash_text(text);
  progress.begin_phase("writing clusters");
  const ContextFileSizes sizes =
      write_fixed_context(system_file_ops(), values.text("output"), context);
  progress.finish();
  print(report(context, values, sizes));
  return 0;
}

}  // namespace triphase
