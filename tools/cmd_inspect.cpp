// `triphase inspect`: what a model directory holds, from its headers alone.

#include <fmt/format.h>

#include "base/error.h"
#include "base/format_bytes.h"
#include "base/json_writer.h"
#include "models/model_summary.h"
#include "runtime/engine/model_hint.h"
#include "runtime/log.h"
#include "runtime/options/option_parser.h"
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
