#pragma once

// Small valid configs, and changed copies of them, for the tests of the config reader.

#include <string>

#include "base/json.h"
#include "models/config/model_config.h"

namespace triphase {

inline constexpr const char* kLlamaConfig = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
  "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 128,
  "rms_norm_eps": 1e-05, "hidden_act": "silu", "eos_token_id": 2, "bos_token_id": 1})";

inline constexpr const char* kOptConfig = R"({
  "architectures": ["OPTForCausalLM"], "model_type": "opt", "hidden_size": 64, "ffn_dim": 96,
  "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
  "max_position_embeddings": 128, "word_embed_proj_dim": 64, "activation_function": "relu",
  "eos_token_id": 2, "bos_token_id": 2})";

inline constexpr const char* kNeoxConfig = R"({
  "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_size": 64,
  "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
  "max_position_embeddings": 128, "layer_norm_eps": 1e-05, "hidden_act": "gelu",
  "rotary_pct": 0.25, "rotary_emb_base": 10000, "eos_token_id": 0, "bos_token_id": 0})";

inline constexpr const char* kGemmaConfig = R"({
  "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "hidden_size": 48,
  "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 100, "max_position_embeddings": 128,
  "rms_norm_eps": 1e-06, "hidden_act": "gelu", "eos_token_id": 1, "bos_token_id": 2})";

inline constexpr const char* kMistralConfig = R"({
  "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 64,
  "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 128,
  "rms_norm_eps": 1e-05, "sliding_window": 24, "eos_token_id": 2})";

inline constexpr const char* kQwen2Config = R"({
  "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 64,
  "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
  "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 128,
  "rms_norm_eps": 1e-06, "eos_token_id": 2})";

inline constexpr const char* kMixtralConfig = R"({
  "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 64,
  "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 100,
  "max_position_embeddings": 128, "rms_norm_eps": 1e-05, "sliding_window": null,
  "eos_token_id": 2})";

inline constexpr const char* kQwen3MoeConfig = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 64,
  "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
  "num_key_value_heads": 2, "num_experts": 16, "num_experts_per_tok": 4,
  "moe_intermediate_size": 24, "norm_topk_prob": true, "decoder_sparse_step": 1,
  "mlp_only_layers": [], "vocab_size": 100, "max_position_embeddings": 128,
  "rms_norm_eps": 1e-06, "eos_token_id": 2})";

inline constexpr const char* kGptOssConfig = R"({
  "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 64,
  "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 3, "num_experts_per_tok": 2,
  "experts_per_token": 2, "hidden_act": "silu", "attention_bias": true, "swiglu_limit": 7.0,
  "vocab_size": 100, "max_position_embeddings": 256, "rms_norm_eps": 1e-05, "sliding_window": 24,
  "layer_types": ["sliding_attention", "full_attention"], "rope_theta": 150000,
  "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                   "truncate": false, "original_max_position_embeddings": 8},
  "quantization_config": {"quant_method": "mxfp4"}, "eos_token_id": 2})";

// `text` with the member `key` replaced or added (raw JSON), or removed when `value` is empty.
inline std::string with(const std::string& text, const std::string& key, const std::string& value) {
  std::string result = text;
  const std::size_t at = result.find("\"" + key + "\":");
  if (at != std::string::npos) {
    std::size_t end = at;
    int depth = 0;
    for (; end < result.size(); ++end) {
      const char c = result[end];
      if (c == '[' || c == '{') ++depth;
      if (c == ']' || c == '}') {
        if (depth == 0) break;
        --depth;
      }
      if (c == ',' && depth == 0) break;
    }
    const bool last = result[end] == '}';
    result.erase(at, end - at + (last ? 0 : 1));
    if (last) result.erase(result.rfind(','), 1);
  }
  if (!value.empty()) result.insert(1, "\"" + key + "\": " + value + ",");
  return result;
}

inline ModelConfig parse(const std::string& text, Notes* notes = nullptr,
                         const std::string& generation = {}) {
  Notes unused;
  const Json json = parse_json_file(text, "config.json", ErrorRole::kModel, "E-CFG-JSON");
  std::optional<Json> second;
  if (!generation.empty()) {
    second = parse_json_file(generation, "generation_config.json", ErrorRole::kModel, "E-CFG-JSON");
  }
  return parse_model_config(json, second ? &*second : nullptr, "config.json",
                            notes == nullptr ? unused : *notes);
}

}  // namespace triphase
