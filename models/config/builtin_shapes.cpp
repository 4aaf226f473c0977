#include <fmt/format.h>

#include <array>

#include "models/config/model_config.h"

namespace triphase {
namespace {

// Published shapes, enough to compute with; there are no files behind them.
struct Shape {
  std::string_view name;
  std::string_view model_type;
  std::int64_t hidden, layers, heads, kv_heads, ffn, vocab, positions;
  std::string_view rest;  // of config.json, where the family's defaults are others
};

constexpr std::string_view kOpt =
    R"("torch_dtype": "float16", "bos_token_id": 2, "eos_token_id": 2)";
constexpr std::string_view kLlama =
    R"("torch_dtype": "float16", "bos_token_id": 1, "eos_token_id": 2)";
constexpr std::string_view kLlama2 =
    R"("torch_dtype": "float16", "bos_token_id": 1, "eos_token_id": 2, "rms_norm_eps": 1e-5)";
constexpr std::string_view kLlama3 =
    R"("torch_dtype": "bfloat16", "bos_token_id": 128000, "eos_token_id": 128001,
       "rms_norm_eps": 1e-5, "rope_theta": 500000.0)";
constexpr std::string_view kPythia =
    R"("torch_dtype": "float16", "bos_token_id": 0, "eos_token_id": 0)";
// v0.1: every layer looks back 4096 tokens.
constexpr std::string_view kMistral =
    R"("torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2, "rms_norm_eps": 1e-5,
       "sliding_window": 4096)";

constexpr std::array<Shape, 14> kShapes{{
    {"opt-125m", "opt", 768, 12, 12, 12, 3072, 50272, 2048, kOpt},
    {"opt-1.3b", "opt", 2048, 24, 32, 32, 8192, 50272, 2048, kOpt},
    {"opt-6.7b", "opt", 4096, 32, 32, 32, 16384, 50272, 2048, kOpt},
    {"opt-13b", "opt", 5120, 40, 40, 40, 20480, 50272, 2048, kOpt},
    {"opt-30b", "opt", 7168, 48, 56, 56, 28672, 50272, 2048, kOpt},
    {"llama-7b", "llama", 4096, 32, 32, 32, 11008, 32000, 2048, kLlama},
    {"llama-13b", "llama", 5120, 40, 40, 40, 13824, 32000, 2048, kLlama},
    {"llama-33b", "llama", 6656, 60, 52, 52, 17920, 32000, 2048, kLlama},
    {"llama-2-7b", "llama", 4096, 32, 32, 32, 11008, 32000, 4096, kLlama2},
    {"llama-2-13b", "llama", 5120, 40, 40, 40, 13824, 32000, 4096, kLlama2},
    {"llama-3-8b", "llama", 4096, 32, 32, 8, 14336, 128256, 8192, kLlama3},
    {"pythia-6.9b", "gpt_neox", 4096, 32, 32, 32, 16384, 50432, 2048, kPythia},
    {"pythia-12b", "gpt_neox", 5120, 36, 40, 40, 20480, 50688, 2048, kPythia},
    {"mistral-7b", "mistral", 4096, 32, 32, 8, 14336, 32000, 32768, kMistral},
}};

ModelConfig to_config(const Shape& shape) {
  const std::string text = fmt::format(
      R"({{"model_type": "{}", "hidden_size": {}, "num_hidden_layers": {},
           "num_attention_heads": {}, "num_key_value_heads": {}, "{}": {}, "vocab_size": {},
           "max_position_embeddings": {}, {}}})",
      shape.model_type, shape.hidden, shape.layers, shape.heads, shape.kv_heads,
      shape.model_type == "opt" ? "ffn_dim" : "intermediate_size", shape.ffn, shape.vocab,
      shape.positions, shape.rest);
  Notes unused;
  return parse_model_config(parse_json_file(text, shape.name, ErrorRole::kModel, "E-CFG-JSON"),
                            nullptr, shape.name, unused);
}

}  // namespace

std::optional<ModelConfig> builtin_shape(std::string_view name) {
  for (const Shape& shape : kShapes) {
    if (shape.name == name) return to_config(shape);
  }
  return std::nullopt;
}

std::vector<std::string> builtin_shape_names() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

}  // namespace triphase
