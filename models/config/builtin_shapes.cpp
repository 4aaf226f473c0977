#include <array>

#include "models/config/model_config.h"

namespace triphase {
namespace {

// Published shapes, enough to compute with; there are no files behind them.
struct Shape {
  std::string_view name;
  std::string_view model_type;
  std::int64_t hidden, layers, heads, kv_heads, ffn, vocab, positions;
};

constexpr std::array<Shape, 14> kShapes{{
    {"opt-125m", "opt", 768, 12, 12, 12, 3072, 50272, 2048},
    {"opt-1.3b", "opt", 2048, 24, 32, 32, 8192, 50272, 2048},
    {"opt-6.7b", "opt", 4096, 32, 32, 32, 16384, 50272, 2048},
    {"opt-13b", "opt", 5120, 40, 40, 40, 20480, 50272, 2048},
    {"opt-30b", "opt", 7168, 48, 56, 56, 28672, 50272, 2048},
    {"llama-7b", "llama", 4096, 32, 32, 32, 11008, 32000, 2048},
    {"llama-13b", "llama", 5120, 40, 40, 40, 13824, 32000, 2048},
    {"llama-33b", "llama", 6656, 60, 52, 52, 17920, 32000, 2048},
    {"llama-2-7b", "llama", 4096, 32, 32, 32, 11008, 32000, 4096},
    {"llama-2-13b", "llama", 5120, 40, 40, 40, 13824, 32000, 4096},
    {"llama-3-8b", "llama", 4096, 32, 32, 8, 14336, 128256, 8192},
    {"pythia-6.9b", "gpt_neox", 4096, 32, 32, 32, 16384, 50432, 2048},
    {"pythia-12b", "gpt_neox", 5120, 36, 40, 40, 20480, 50688, 2048},
    {"mistral-7b", "mistral", 4096, 32, 32, 8, 14336, 32000, 32768},
}};

ModelConfig to_config(const Shape& shape) {
  ModelConfig config;
  config.model_type = shape.model_type;
  config.hidden_size = shape.hidden;
  config.layers = shape.layers;
  config.heads = shape.heads;
  config.kv_heads = shape.kv_heads;
  config.head_dim = shape.hidden / shape.heads;
  config.ffn_size = shape.ffn;
  config.vocab_size = shape.vocab;
  config.max_positions = shape.positions;
  config.embed_dim = shape.hidden;
  config.declared_dtype = DType::kF16;
  if (shape.model_type == "opt") {
    config.architecture = "OPTForCausalLM";
    config.naming = TensorNaming::kOpt;
    config.norms.kind = Norm::kLayerNorm;
    config.norms.bias = true;
    config.norms.eps = 1e-5;
    config.mlp.activation = Activation::kRelu;
    config.mlp.gated = false;
    config.attention.qkv_bias = config.attention.out_bias = config.mlp.bias = true;
    config.embedding.position_offset = 2;
    config.embedding.tied = true;
    config.bos_id = 2;
    config.eos_ids = {2};
    return config;
  }
  config.rope.emplace().rotary_dim = config.head_dim;
  if (shape.model_type == "gpt_neox") {
    config.architecture = "GPTNeoXForCausalLM";
    config.naming = TensorNaming::kGptNeox;
    config.norms.kind = Norm::kLayerNorm;
    config.norms.bias = true;
    config.norms.eps = 1e-5;
    config.parallel_residual = true;
    config.mlp.activation = Activation::kGeluErf;
    config.mlp.gated = false;
    config.attention.qkv_bias = config.attention.out_bias = config.mlp.bias = true;
    config.rope->rotary_dim = config.head_dim / 4;
    config.bos_id = 0;
    config.eos_ids = {0};
    return config;
  }
  config.architecture = shape.model_type == "mistral" ? "MistralForCausalLM" : "LlamaForCausalLM";
  config.norms.kind = Norm::kRmsNorm;
  config.norms.eps = shape.name.starts_with("llama-7b") || shape.name.starts_with("llama-13b") ||
                             shape.name.starts_with("llama-33b")
                         ? 1e-6
                         : 1e-5;
  config.bos_id = 1;
  config.eos_ids = {2};
  if (shape.name == "llama-3-8b") {
    config.rope->theta = 500000.0;
    config.bos_id = 128000;
    config.eos_ids = {128001};
    config.declared_dtype = DType::kBF16;
  }
  if (shape.model_type == "mistral") {
    // v0.1: every layer looks back 4096 tokens.
    config.sliding_window.assign(static_cast<std::size_t>(shape.layers), 4096);
    config.declared_dtype = DType::kBF16;
  }
  return config;
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
