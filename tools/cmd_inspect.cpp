// `triphase inspect`: what a model directory holds, from its headers alone.

#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"
#include "models/model_summary.h"
#include "runtime/progress.h"
#include "tools/attention_map.h"
#include "tools/commands.h"

namespace triphase {
namespace {

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
  line("heads", fmt::format("{} of {} channels, {} for keys and values", config.heads,
                            config.head_dim, config.kv_heads));
  line("vocabulary", fmt::to_string(config.vocab_size));
  line("context", fmt::format("{} tokens", config.max_positions));
  line("parameters", fmt::to_string(summary.parameters));
  line("weights", fmt::format("{} as {}", bytes_text(summary.weight_bytes),
                              dtype_name(summary.weights_dtype)));
  for (const KvCost& cost : summary.kv) {
    line("KV per token",
         fmt::format("{} as {}, {} at full context", bytes_text(cost.bytes_per_token),
                     dtype_name(cost.dtype),
                     format_bytes(cost.bytes_per_token *
                                  static_cast<std::uint64_t>(config.max_positions))));
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

std::string string_list(const std::vector<std::string>& items) {
  std::string out;
  for (const std::string& item : items) out += (out.empty() ? "" : ", ") + json_quote(item);
  return "[" + out + "]";
}

std::string as_json(const ModelSummary& summary) {
  const ModelConfig& config = summary.config;
  std::string out = "{\n  \"format\": \"triphase-inspect/1\"";
  const auto line = [&out](std::string_view name, const std::string& value) {
    out += fmt::format(",\n  \"{}\": {}", name, value);
  };
  line("model_type", json_quote(summary.model_type));
  line("architecture", json_quote(summary.architecture));
  line("layers", fmt::to_string(config.layers));
  line("hidden_size", fmt::to_string(config.hidden_size));
  line("ffn_size", fmt::to_string(config.ffn_size));
  line("heads", fmt::to_string(config.heads));
  line("kv_heads", fmt::to_string(config.kv_heads));
  line("head_dim", fmt::to_string(config.head_dim));
  line("vocab_size", fmt::to_string(config.vocab_size));
  line("max_positions", fmt::to_string(config.max_positions));
  line("parameters", fmt::to_string(summary.parameters));
  line("weight_bytes", fmt::to_string(summary.weight_bytes));
  line("weights_dtype", json_quote(dtype_name(summary.weights_dtype)));
  std::string kv;
  for (const KvCost& cost : summary.kv) {
    kv += fmt::format("{}{}: {}", kv.empty() ? "" : ", ", json_quote(dtype_name(cost.dtype)),
                      cost.bytes_per_token);
  }
  line("kv_bytes_per_token", "{" + kv + "}");
  line("weight_files", string_list(summary.weight_files));
  line("file_bytes", fmt::to_string(summary.file_bytes));
  line("tokenizer_files", string_list(summary.tokenizer_files));
  line("notes", string_list(summary.notes));
  std::string tensors;
  for (const TensorSummary& tensor : summary.tensors) {
    tensors += fmt::format(
        "{}\n    {{\"name\": {}, \"dtype\": {}, \"shape\": [{}], \"bytes\": {}, \"file\": {}}}",
        tensors.empty() ? "" : ",", json_quote(tensor.name), json_quote(tensor.dtype),
        fmt::join(tensor.shape, ", "), tensor.bytes, json_quote(tensor.file));
  }
  line("tensors", tensors.empty() ? "[]" : "[" + tensors + "\n  ]");
  return out + "\n}\n";
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
    const ModelDirectory directory = open_model_directory(model);
    summary = summarise_model(directory);
  }
  print(values.text("format") == "json" ? as_json(summary) : as_text(summary));
  return 0;
}

}  // namespace triphase
