#include "runtime/job/manifest.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json.h"
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

constexpr std::string_view kFormat = "triphase-manifest/2";

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

// Every option that can change the bytes of a record; the values after all defaults. Memory and
// batch sizes stay out: after a lack of memory the same job must be able to go on with others.
std::string generation_json(const RunOptions& options, const ModelIdentity& model) {
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  std::string lines = fmt::format(
      "\"truncate\":{},\"invalid_utf8\":{},\"allow_duplicate_ids\":{},\"no_special\":{},"
      "\"max_line_bytes\":{},\"attention\":{},\"random_weights\":{},\"weights_dtype\":{}",
      json_quote(truncate_name(options.truncate)),
      json_quote(options.replace_invalid_utf8 ? "replace" : "error"),
      flag(options.allow_duplicate_ids), flag(options.no_special), options.max_line_bytes,
      json_quote(attention_text(options)), flag(options.random_weights),
      options.weights_dtype ? json_quote(dtype_name(*options.weights_dtype)) : "null");
  if (!model.fixed_context.empty()) {
    lines += fmt::format(",\"fixed_context\":{}", json_quote(model.fixed_context));
  }
  if (options.job == JobKind::kScore) {
    return fmt::format("{{\"score\":true,\"token_logprobs\":{},{}}}", flag(options.token_logprobs),
                       lines);
  }
  const SamplingParams& sampling = options.sampling;
  std::string stops;
  for (const std::string& stop : sampling.stop) {
    stops += (stops.empty() ? "" : ",") + json_quote(stop);
  }
  std::string out = "{";
  out += fmt::format("\"max_tokens\":{},\"temperature\":{},\"top_p\":{},\"top_k\":{}",
                     sampling.max_tokens, json_number(sampling.temperature),
                     json_number(sampling.top_p), sampling.top_k);
  out += fmt::format(",\"min_p\":{},\"repetition_penalty\":{},\"stop\":[{}],\"logprobs\":{}",
                     json_number(sampling.min_p), json_number(sampling.repetition_penalty), stops,
                     sampling.logprobs);
  out += fmt::format(",\"ignore_eos\":{},", flag(sampling.ignore_eos)) + lines;
  return out + "}";
}

// Reads fields of a parsed manifest, naming the path of whatever is wrong.
class Fields {
 public:
  Fields(const Json& object, std::string path, std::string_view file)
      : object_(object), path_(std::move(path)), file_(file) {}

  const Json& at(std::string_view key) const {
    const Json* value = object_.find(key);
    if (value == nullptr) fail(key, "missing", "a value");
    return *value;
  }
  std::string text(std::string_view key) const {
    const Json& value = at(key);
    if (value.string() == nullptr) fail(key, value.describe(), "a string");
    return *value.string();
  }
  std::uint64_t count(std::string_view key) const {
    const Json& value = at(key);
    if (const auto* number = std::get_if<std::uint64_t>(&value.value())) return *number;
    if (!value.integer() || *value.integer() < 0) {
      fail(key, value.describe(), "an integer from 0");
    }
    return static_cast<std::uint64_t>(*value.integer());
  }
  Fields object(std::string_view key) const {
    const Json& value = at(key);
    if (!value.is_object()) fail(key, value.describe(), "an object");
    return {value, name(key), file_};
  }
  [[noreturn]] void fail(std::string_view key, std::string_view found,
                         std::string_view expected) const {
    throw Error(ErrorRole::kInput, "E-IN-MANIFEST", name(key))
        .file(file_)
        .found(found)
        .expected(expected)
        .hint("--overwrite starts the job anew");
  }

 private:
  std::string name(std::string_view key) const {
    return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  }

  const Json& object_;
  std::string path_;
  std::string_view file_;
};

// Our own spelling of a JSON value of one level, so that manifests compare by value.
std::string value_text(const Json& value) {
  if (const JsonArray* items = value.array()) {
    std::string out;
    for (const Json& item : *items) out += (out.empty() ? "" : ",") + value_text(item);
    return "[" + out + "]";
  }
  if (value.string() != nullptr) return json_quote(*value.string());
  return value.describe();
}

std::string canonical_object(const Json& object) {
  std::string out;
  for (const auto& [key, value] : *object.object()) {
    out += fmt::format("{}{}:{}", out.empty() ? "" : ",", json_quote(key), value_text(value));
  }
  return "{" + out + "}";
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

}  // namespace

Manifest make_manifest(const RunOptions& options, const PromptFileFacts& input,
                       const ModelIdentity& model, std::string_view kv_dtype,
                       std::int64_t layer_inputs) {
  Manifest manifest;
  manifest.program_version = program_version();
  manifest.commit = build_commit();
  manifest.input_path = options.prompts;
  manifest.input_bytes = input.bytes;
  manifest.input_lines = input.lines;
  manifest.records = input.requests;
  manifest.input_hash = input.hash;
  manifest.model = model;
  manifest.generation = generation_json(options, model);
  manifest.seed = options.seed;
  manifest.kv_dtype = kv_dtype;
  manifest.layer_inputs = static_cast<std::uint64_t>(layer_inputs);
  manifest.shard_index = options.shard.index;
  manifest.shard_count = options.shard.count;
  manifest.order = order_name(options.order);
  manifest.input_format = input_format_name(options.input_format);
  manifest.writer_pid = getpid();
  manifest.writer_host = host_name();
  return manifest;
}

std::string manifest_to_json(const Manifest& manifest) {
  std::string out = "{\n";
  const auto line = [&out](std::string_view text) { out += fmt::format("  {}", text); };
  line(fmt::format("\"format\": {},\n", json_quote(kFormat)));
  line(fmt::format("\"program\": {{\"version\": {}, \"commit\": {}, \"kernels\": {}}},\n",
                   json_quote(manifest.program_version), json_quote(manifest.commit),
                   json_quote(manifest.kernels)));
  line(
      fmt::format("\"input\": {{\"path\": {}, \"bytes\": {}, \"lines\": {}, \"hash\": {}, "
                  "\"format\": {}}},\n",
                  json_quote(manifest.input_path), manifest.input_bytes, manifest.input_lines,
                  json_quote(manifest.input_hash), json_quote(manifest.input_format)));
  line(
      fmt::format("\"model\": {{\"path\": {}, \"fingerprint\": {}, \"weights\": {}, "
                  "\"generation_config\": {}, \"tokenizer\": {}}},\n",
                  json_quote(manifest.model.path), json_quote(manifest.model.fingerprint),
                  json_quote(manifest.model.weights), json_quote(manifest.model.generation_config),
                  json_quote(manifest.model.tokenizer)));
  line(fmt::format("\"generation\": {},\n", manifest.generation));
  line(fmt::format("\"seed\": {},\n", manifest.seed));
  line(fmt::format("\"kv_dtype\": {},\n", json_quote(manifest.kv_dtype)));
  line(fmt::format("\"layer_inputs\": {},\n", manifest.layer_inputs));
  line(fmt::format("\"plan_hash\": {},\n", json_quote(manifest.plan_hash)));
  line(fmt::format("\"shard\": {{\"index\": {}, \"count\": {}}},\n", manifest.shard_index,
                   manifest.shard_count));
  line(fmt::format("\"records\": {},\n", manifest.records));
  line(fmt::format("\"order\": {},\n", json_quote(manifest.order)));
  line(fmt::format("\"writer\": {{\"pid\": {}, \"host\": {}}}\n", manifest.writer_pid,
                   json_quote(manifest.writer_host)));
  return out + "}\n";
}

Manifest parse_manifest(std::string_view text, std::string_view file) {
  const Json json = parse_json_file(text, file, ErrorRole::kInput, "E-IN-MANIFEST");
  const Fields top(json, "", file);
  if (!json.is_object()) top.fail("manifest", json.describe(), "an object");
  if (top.text("format") != kFormat) {
    top.fail("format", top.at("format").describe(), fmt::format("\"{}\"", kFormat));
  }
  Manifest manifest;
  const Fields program = top.object("program");
  manifest.program_version = program.text("version");
  manifest.commit = program.text("commit");
  manifest.kernels = program.text("kernels");
  const Fields input = top.object("input");
  manifest.input_path = input.text("path");
  manifest.input_bytes = input.count("bytes");
  manifest.input_lines = input.count("lines");
  manifest.input_hash = input.text("hash");
  manifest.input_format = input.text("format");
  const Fields model = top.object("model");
  manifest.model.path = model.text("path");
  manifest.model.fingerprint = model.text("fingerprint");
  manifest.model.weights = model.text("weights");
  manifest.model.generation_config = model.text("generation_config");
  manifest.model.tokenizer = model.text("tokenizer");
  top.object("generation");  // checks the type
  manifest.generation = canonical_object(top.at("generation"));
  manifest.seed = top.count("seed");
  manifest.kv_dtype = top.text("kv_dtype");
  manifest.layer_inputs = top.count("layer_inputs");
  manifest.plan_hash = top.text("plan_hash");
  const Fields shard = top.object("shard");
  manifest.shard_index = shard.count("index");
  manifest.shard_count = shard.count("count");
  if (manifest.shard_count == 0 || manifest.shard_index >= manifest.shard_count) {
    shard.fail("index", fmt::format("{} of {}", manifest.shard_index, manifest.shard_count),
               "an index below the count");
  }
  manifest.records = top.count("records");
  manifest.order = top.text("order");
  const Fields writer = top.object("writer");
  manifest.writer_pid = static_cast<std::int64_t>(writer.count("pid") & INT64_MAX);
  manifest.writer_host = writer.text("host");
  return manifest;
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
  compare("seed", fmt::to_string(there.seed), fmt::to_string(now.seed));
  compare("kv-dtype", there.kv_dtype, now.kv_dtype);
  compare("layer-inputs", fmt::to_string(there.layer_inputs), fmt::to_string(now.layer_inputs));
  compare("plan", there.plan_hash, now.plan_hash);
  compare("shard", fmt::format("{}/{}", there.shard_index, there.shard_count),
          fmt::format("{}/{}", now.shard_index, now.shard_count));
  compare("order", there.order, now.order);
  compare("input-format", there.input_format, now.input_format);
  compare_generation(there.generation, now.generation, differences);
  return differences;
}

}  // namespace triphase
