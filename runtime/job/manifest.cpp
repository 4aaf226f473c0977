#include "runtime/job/manifest.h"

#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"
#include "base/json_reader.h"
#include "base/json_writer.h"
#include "runtime/build_info.h"
#include "runtime/options/option_names.h"

namespace triphase {
namespace {

// The method with every option that decides its answers.
std::string attention_text(const RunOptions& options) {
  std::string text(attention_name(options.attention.kind));
  for (const std::string& option : describe_attention_options(options.attention)) {
    text += " " + option;
  }
  // The budget above was chosen by this.
  if (options.auto_sparsity) {
    text += " kv-sparsity=auto max-divergence=" + json_number(options.max_divergence);
  }
  return text;
}

constexpr std::string_view kFormat = "triphase-manifest/3";

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

// Every option that can change the bytes of a record; the values after all defaults. Memory and
// batch sizes stay out: after a lack of memory the same job must be able to go on with others.
std::string generation_json(const RunOptions& options, const ModelIdentity& model) {
  std::string out;
  JsonWriter json(out, JsonWriter::Layout::kCompact);
  json.begin_object();
  if (options.job == JobKind::kScore) {
    json.members({{"score", true}, {"token_logprobs", options.token_logprobs}});
  } else {
    const SamplingParams& sampling = options.generation.sampling;
    json.members({{"max_tokens", sampling.max_tokens},
                  {"temperature", sampling.temperature},
                  {"top_p", sampling.top_p},
                  {"top_k", sampling.top_k},
                  {"min_p", sampling.min_p},
                  {"repetition_penalty", sampling.repetition_penalty}});
    json.key("stop").array(sampling.stop);
    json.members({{"logprobs", sampling.logprobs}, {"ignore_eos", sampling.ignore_eos}});
  }
  json.members({{"truncate", name_of(kTruncateNames, options.reading.truncate)},
                {"invalid_utf8", options.reading.replace_invalid_utf8 ? "replace" : "error"},
                {"allow_duplicate_ids", options.reading.allow_duplicate_ids},
                {"no_special", options.reading.no_special},
                {"max_line_bytes", options.reading.max_line_bytes},
                {"max_context", options.machine.max_context},
                {"attention", attention_text(options)},
                {"random_weights", options.weights.random}});
  if (!model.fixed_context.empty()) json.member("fixed_context", model.fixed_context);
  json.end();
  return out;
}

// Our own spelling of a JSON value, so that manifests compare by value.
std::string value_text(const Json& value) {
  std::string out;
  JsonWriter(out, JsonWriter::Layout::kCompact).value(value);
  return out;
}

void compare_generation(const std::string& there, const std::string& now,
                        std::vector<std::string>& differences) {
  if (there == now) return;
  JsonProblem problem;
  const std::optional<Json> old_values = parse_json(there, problem);
  const std::optional<Json> new_values = parse_json(now, problem);
  TRIPHASE_CHECK(old_values && new_values && old_values->is_object() && new_values->is_object(),
                 "generation options are JSON objects");
  const auto describe = [](const Json* value) {
    return value == nullptr ? std::string("absent") : value_text(*value);
  };
  const auto compare_key = [&](const std::string& key) {
    const std::string before = describe(old_values->find(key));
    const std::string after = describe(new_values->find(key));
    if (before != after) {
      differences.push_back(fmt::format("{}: {} there, {} now", key, before, after));
    }
  };
  for (const auto& [key, value] : *new_values->object()) compare_key(key);
  for (const auto& [key, value] : *old_values->object()) {
    if (new_values->find(key) == nullptr) compare_key(key);
  }
}

constexpr std::string_view kBlocks = " in blocks of ";
constexpr std::string_view kTokens = " tokens";

}  // namespace

std::string describe(const KvValues& values) {
  std::string text(dtype_name(values.dtype));
  if (values.block_tokens > 0) text += fmt::format("{}{}{}", kBlocks, values.block_tokens, kTokens);
  return text;
}

std::optional<KvValues> parse_kv_values(std::string_view text) {
  const std::size_t blocks = std::min(text.find(kBlocks), text.size());
  const std::optional<DType> dtype = dtype_from_name(text.substr(0, blocks));
  if (!dtype) return std::nullopt;
  KvValues values{*dtype, 0};
  if (blocks < text.size()) {
    const char* const begin = text.data() + blocks + kBlocks.size();
    const char* const end = text.data() + text.size();
    const auto [behind, error] = std::from_chars(begin, end, values.block_tokens);
    if (error != std::errc() || values.block_tokens <= 0) return std::nullopt;
    if (std::string_view(behind, end) != kTokens) return std::nullopt;
  }
  const bool known = values.block_tokens > 0 ? *dtype == DType::kInt8 : is_float(*dtype);
  return known ? std::optional(values) : std::nullopt;
}

Manifest make_manifest(const RunOptions& options, const PromptFileFacts& input,
                       const ModelIdentity& model, std::string_view kv_dtype,
                       std::int64_t cached_hidden_states) {
  Manifest manifest;
  manifest.program_version = program_version();
  manifest.commit = build_commit();
  manifest.input_path = options.files.prompts;
  manifest.input_bytes = input.bytes;
  manifest.input_lines = input.lines;
  manifest.records = input.requests;
  manifest.input_hash = input.hash;
  manifest.model = model;
  manifest.generation = generation_json(options, model);
  manifest.seed = options.generation.seed;
  manifest.kv_dtype = kv_dtype;
  manifest.cached_hidden_states = static_cast<std::uint64_t>(cached_hidden_states);
  manifest.shard_index = options.files.shard.index;
  manifest.shard_count = options.files.shard.count;
  manifest.order = name_of(kOrderNames, options.files.order);
  manifest.input_format = name_of(kInputFormatNames, options.files.input_format);
  manifest.writer_pid = getpid();
  manifest.writer_host = host_name();
  return manifest;
}

std::string manifest_to_json(const Manifest& manifest) {
  std::string out;
  JsonWriter json(out, JsonWriter::Layout::kLines);
  json.begin_object().member("format", kFormat);
  json.key("program").object({{"version", manifest.program_version},
                              {"commit", manifest.commit},
                              {"kernels", manifest.kernels}});
  json.key("input").object({{"path", manifest.input_path},
                            {"bytes", manifest.input_bytes},
                            {"lines", manifest.input_lines},
                            {"hash", manifest.input_hash},
                            {"format", manifest.input_format}});
  json.key("model").object({{"path", manifest.model.path},
                            {"fingerprint", manifest.model.fingerprint},
                            {"weights", manifest.model.weights},
                            {"generation_config", manifest.model.generation_config},
                            {"tokenizer", manifest.model.tokenizer},
                            {"chat_template", manifest.model.chat_template}});
  json.members({{"generation", JsonText{manifest.generation}},
                {"seed", manifest.seed},
                {"kv_dtype", manifest.kv_dtype},
                {"cached_hidden_states", manifest.cached_hidden_states},
                {"plan_hash", manifest.plan_hash}});
  json.key("shard").object({{"index", manifest.shard_index}, {"count", manifest.shard_count}});
  json.members(
      {{"records", manifest.records}, {"order", manifest.order}, {"started", manifest.started}});
  json.key("writer").object({{"pid", manifest.writer_pid}, {"host", manifest.writer_host}});
  json.end();
  return out + "\n";
}

Manifest parse_manifest(std::string_view text, std::string_view file) {
  const Json json = parse_json_file(text, file, ErrorRole::kInput, "E-IN-MANIFEST");
  JsonObjectReader top(json, "", file, "E-IN-MANIFEST", "--overwrite starts the job anew");
  top.format(kFormat);
  Manifest manifest;
  JsonObjectReader program = top.object("program");
  manifest.program_version = program.text("version");
  manifest.commit = program.text("commit");
  manifest.kernels = program.text("kernels");
  JsonObjectReader input = top.object("input");
  manifest.input_path = input.text("path");
  manifest.input_bytes = input.count("bytes");
  manifest.input_lines = input.count("lines");
  manifest.input_hash = input.text("hash");
  manifest.input_format = input.text("format");
  JsonObjectReader model = top.object("model");
  manifest.model.path = model.text("path");
  manifest.model.fingerprint = model.text("fingerprint");
  manifest.model.weights = model.text("weights");
  manifest.model.generation_config = model.text("generation_config");
  manifest.model.tokenizer = model.text("tokenizer");
  manifest.model.chat_template = model.text("chat_template");
  (void)top.object("generation");  // checks the type
  manifest.generation = value_text(top.value("generation"));
  manifest.seed = top.count("seed");
  manifest.kv_dtype = top.text("kv_dtype");
  manifest.cached_hidden_states = top.count("cached_hidden_states");
  manifest.plan_hash = top.text("plan_hash");
  JsonObjectReader shard = top.object("shard");
  manifest.shard_index = shard.count("index");
  manifest.shard_count = shard.count("count");
  if (manifest.shard_count == 0 || manifest.shard_index >= manifest.shard_count) {
    shard.fail("index", fmt::format("{} of {}", manifest.shard_index, manifest.shard_count),
               "an index below the count");
  }
  manifest.records = top.count("records");
  manifest.order = top.text("order");
  manifest.started = static_cast<std::int64_t>(top.count("started") & INT64_MAX);
  JsonObjectReader writer = top.object("writer");
  manifest.writer_pid = static_cast<std::int64_t>(writer.count("pid") & INT64_MAX);
  manifest.writer_host = writer.text("host");
  return manifest;
}

Manifest read_manifest(FileOps& ops, const std::string& file) {
  return parse_manifest(read_small_file(ops, file, kMaxManifestBytes), file);
}

std::string job_key(const Manifest& manifest) {
  const ModelIdentity& model = manifest.model;
  std::string text = fmt::format("{} {} {} {} {}", manifest.started, manifest.seed,
                                 manifest.kv_dtype, manifest.plan_hash, manifest.generation);
  for (const std::string& part : {manifest.input_hash, model.fingerprint, model.weights,
                                  model.tokenizer, model.generation_config, model.chat_template}) {
    text += " " + part;
  }
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

std::vector<std::string> manifest_differences(const Manifest& there, const Manifest& now) {
  std::vector<std::string> differences;
  const auto compare = [&](std::string_view name, const std::string& before,
                           const std::string& after) {
    if (before != after) {
      differences.push_back(fmt::format("{}: {} there, {} now", name,
                                        before.empty() ? "none" : before,
                                        after.empty() ? "none" : after));
    }
  };
  compare("program version", there.program_version, now.program_version);
  compare("build", there.commit, now.commit);
  compare("kernels", there.kernels, now.kernels);
  compare("input hash", there.input_hash, now.input_hash);
  compare("model", there.model.fingerprint, now.model.fingerprint);
  compare("weights", there.model.weights, now.model.weights);
  compare("generation_config.json", there.model.generation_config, now.model.generation_config);
  compare("tokenizer", there.model.tokenizer, now.model.tokenizer);
  compare("chat template", there.model.chat_template, now.model.chat_template);
  compare("seed", fmt::to_string(there.seed), fmt::to_string(now.seed));
  compare("kv-dtype", there.kv_dtype, now.kv_dtype);
  compare("cached-hidden-states", fmt::to_string(there.cached_hidden_states),
          fmt::to_string(now.cached_hidden_states));
  compare("plan", there.plan_hash, now.plan_hash);
  compare("shard", fmt::format("{}/{}", there.shard_index, there.shard_count),
          fmt::format("{}/{}", now.shard_index, now.shard_count));
  compare("order", there.order, now.order);
  compare("input-format", there.input_format, now.input_format);
  compare_generation(there.generation, now.generation, differences);
  return differences;
}

}  // namespace triphase
