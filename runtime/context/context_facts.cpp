#include "runtime/context/context_facts.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/json_reader.h"
#include "base/json_writer.h"

namespace triphase {
namespace {

constexpr std::string_view kCode = kClustersCode;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 24;  // as positions of a model
constexpr std::int64_t kMaxHeads = std::int64_t{1} << 16;
constexpr std::int64_t kMaxNumber = std::int64_t{1} << 53;  // exact in every JSON reader

void write_level(JsonWriter& json, const ContextClusters::Level& level, double quantile) {
  json.object({{"clusters", level.count}, {"threshold", level.threshold}, {"quantile", quantile}});
}

ContextClusters::Level read_level(JsonObjectReader reader, std::int64_t most, double& quantile) {
  ContextClusters::Level level;
  level.count = reader.integer("clusters", 1, most);
  level.threshold = reader.number("threshold", 0.0, 1.0);
  quantile = reader.number("quantile", 0.0, 1.0);
  reader.finish();
  return level;
}

// Thresholds of query heads' own scores are KV heads' only where each has one query head.
void check_scope(JsonObjectReader& options, const MethodShape& shape, std::string_view file) {
  if (!options.has("scope")) return;
  const std::string scope = options.text("scope");
  if (scope == "kv_head" || (scope == "query_head" && shape.heads == shape.kv_heads)) return;
  throw Error(ErrorRole::kInput, kCode, options.name("scope"))
      .file(file)
      .found(json_quote(scope))
      .expected("kv_head")
      .hint("make the clusters again with triphase cluster");
}

}  // namespace

std::string context_facts_json(const FixedContext& context, std::int64_t tokens,
                               std::uint64_t data_bytes, std::string_view data_hash) {
  const ClusterOptions& options = context.options;
  const CalibrationFacts& facts = context.calibration;
  const bool two = options.levels == 2;
  const auto of_two = [two](double value) { return two ? std::optional(value) : std::nullopt; };
  std::string out;
  JsonWriter json(out, JsonWriter::Layout::kLines);
  json.begin_object().member("format", kClustersFormat);
  json.key("program").object(
      {{"version", context.program_version}, {"commit", context.program_commit}});
  json.key("model").object({{"fingerprint", context.model_fingerprint},
                            {"tokenizer", context.tokenizer_fingerprint},
                            {"layers", context.shape.layers},
                            {"heads", context.shape.heads},
                            {"kv_heads", context.shape.kv_heads},
                            {"head_dim", context.shape.head_dim}});
  json.key("context").object({{"text_hash", context.text_hash},
                              {"tokens", tokens},
                              {"clustered_tokens", context.clusters.clustered_tokens}});
  json.key("options").object({{"centroids", options.centroids},
                              {"coarse_centroids", options.coarse_centroids},
                              {"levels", options.levels},
                              {"window", options.window},
                              {"calibrate", options.pruned_calibration ? "pruned" : "full"},
                              {"seed", options.seed},
                              {"max_iterations", options.max_iterations}});
  write_level(json.key("fine"), context.clusters.fine, options.quantile);
  json.key("coarse");
  if (two) {
    write_level(json, context.clusters.coarse, options.coarse_quantile);
  } else {
    json.value(nullptr);
  }
  json.key("calibration")
      .object({{"queries", facts.queries},
               {"kept_share", facts.kept_share},
               {"kept_share_levels2", of_two(facts.kept_share_levels2)},
               {"looked_up_share", of_two(facts.looked_up_share)}});
  json.key("data").object({{"bytes", data_bytes}, {"hash", data_hash}});
  json.end();
  return out + "\n";
}

ContextFacts parse_context_facts(std::string_view text, std::string_view file) {
  const Json json = parse_json_file(text, file, ErrorRole::kInput, kCode);
  JsonObjectReader top(json, "", file, kCode);
  top.format(kClustersFormat);
  ContextFacts facts;
  FixedContext& context = facts.context;
  JsonObjectReader program = top.object("program");
  context.program_version = program.text("version");
  context.program_commit = program.text("commit");
  program.finish();
  JsonObjectReader model = top.object("model");
  context.model_fingerprint = model.text("fingerprint");
  context.tokenizer_fingerprint = model.text("tokenizer");
  context.shape.layers = model.integer("layers", 1, kMaxHeads);
  context.shape.heads = model.integer("heads", 1, kMaxHeads);
  context.shape.kv_heads = model.integer("kv_heads", 1, kMaxHeads);
  context.shape.head_dim = model.integer("head_dim", 1, kMaxHeads);
  model.finish();
  JsonObjectReader options = top.object("options");
  context.options.centroids = options.number("centroids", 0.0, 1.0);
  context.options.coarse_centroids = options.number("coarse_centroids", 0.0, 1.0);
  context.options.levels = options.integer("levels", 1, 2);
  context.options.window = options.integer("window", 1, kMaxTokens);
  const std::string calibrate = options.text("calibrate");
  if (calibrate != "full" && calibrate != "pruned") {
    options.fail("calibrate", json_quote(calibrate), "full or pruned");
  }
  context.options.pruned_calibration = calibrate == "pruned";
  check_scope(options, context.shape, file);
  context.options.seed = static_cast<std::uint64_t>(options.integer("seed", 0, kMaxNumber));
  context.options.max_iterations = options.integer("max_iterations", 1, kMaxNumber);
  options.finish();
  JsonObjectReader made_from = top.object("context");
  context.text_hash = made_from.text("text_hash");
  facts.tokens = made_from.integer("tokens", 2, kMaxTokens);
  context.clusters.context_tokens = facts.tokens;
  context.clusters.clustered_tokens = made_from.integer("clustered_tokens", 1, facts.tokens - 1);
  if (context.clusters.clustered_tokens != facts.tokens - context.options.window) {
    made_from.fail(
        "clustered_tokens", fmt::to_string(context.clusters.clustered_tokens),
        fmt::format("{}, the tokens less the window", facts.tokens - context.options.window));
  }
  made_from.finish();
  context.clusters.fine =
      read_level(top.object("fine"), context.clusters.clustered_tokens, context.options.quantile);
  const bool two = context.options.levels == 2;
  if (two) {
    context.clusters.coarse = read_level(top.object("coarse"), context.clusters.fine.count,
                                         context.options.coarse_quantile);
  } else if (!top.value("coarse").is_null()) {
    top.fail("coarse", top.value("coarse").describe(), "null with one level");
  }
  JsonObjectReader calibration = top.object("calibration");
  context.calibration.queries = calibration.integer("queries", 1, kMaxTokens);
  context.calibration.kept_share = calibration.number("kept_share", 0.0, 1.0);
  for (const auto& [name, to] :
       {std::pair{"kept_share_levels2", &context.calibration.kept_share_levels2},
        std::pair{"looked_up_share", &context.calibration.looked_up_share}}) {
    if (two) {
      *to = calibration.number(name, 0.0, 2.0);
    } else if (!calibration.value(name).is_null()) {
      calibration.fail(name, calibration.value(name).describe(), "null with one level");
    }
  }
  calibration.finish();
  JsonObjectReader data = top.object("data");
  facts.data_bytes = data.bytes("bytes");
  facts.data_hash = data.text("hash");
  data.finish();
  top.finish();
  return facts;
}

}  // namespace triphase
