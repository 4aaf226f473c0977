// Families with LayerNorm.

#include <fmt/format.h>

#include <cmath>

#include "models/config/config_limits.h"
#include "models/config/families.h"
#include "models/config/rope_fields.h"

namespace triphase {
namespace {

// Sizes by their usual names.
void read_sizes(const ConfigFields& fields, bool kv_heads_required, ModelConfig& config) {
  read_common_sizes(fields, {}, config);
  read_kv_heads(fields, kv_heads_required, config);
  read_head_dim(fields, std::nullopt, config);
  config.ffn_size = fields.size("intermediate_size", kMaxFfn);
}

void read_norm(const ConfigFields& fields, std::string_view eps_key, ModelConfig& config) {
  config.norms.kind = Norm::kLayerNorm;
  config.norms.bias = true;
  config.norms.eps = read_norm_eps(fields, eps_key, 1e-5);
}

// Cohere's two generations: parallel branches behind one norm without bias.
void read_cohere_like(const ConfigFields& fields, double theta, ModelConfig& config, Notes& notes) {
  read_sizes(fields, false, config);
  read_norm(fields, "layer_norm_eps", config);
  config.norms.bias = false;
  config.parallel_residual = config.norms.shared = true;
  config.mlp.activation = read_activation(fields, "hidden_act", Activation::kSilu);
  config.attention.qkv_bias = config.attention.out_bias = fields.flag("attention_bias", false);
  config.embedding.tied = fields.flag("tie_word_embeddings", true);
  const double scale = fields.optional_number("logit_scale").value_or(0.0625);
  if (!(scale > 0.0) || !std::isfinite(1.0 / scale)) {
    throw fields.error("E-CFG-FEATURE", "logit_scale").expected("a number above 0");
  }
  config.logits.divisor = 1.0 / scale;
  config.rope = read_rope(fields, {.theta = theta}, config, notes);
  config.rope->neighbours = true;
}

void read_gpt_neox(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  config.naming = TensorNaming::kGptNeox;
  read_common_sizes(fields, {}, config);
  read_even_head_dim(fields, config);
  config.ffn_size = fields.size("intermediate_size", kMaxFfn);
  read_norm(fields, "layer_norm_eps", config);
  config.parallel_residual = fields.flag("use_parallel_residual", true);
  config.mlp.activation = read_activation(fields, "hidden_act", Activation::kGeluErf);
  config.mlp.gated = false;
  config.attention.qkv_bias = config.attention.out_bias = fields.flag("attention_bias", true);
  config.mlp.bias = true;
  config.embedding.tied = fields.flag("tie_word_embeddings", false);
  config.rope = read_rope(fields,
                          {.theta_key = "rotary_emb_base",
                           .fraction_key = "rotary_pct",
                           .partial = true,
                           .rotary_fraction = 0.25},
                          config, notes);
}

void read_opt(const ConfigFields& fields, ModelConfig& config, Notes& /*notes*/) {
  config.naming = TensorNaming::kOpt;
  read_common_sizes(fields, {}, config);
  read_even_head_dim(fields, config);
  config.ffn_size = fields.size("ffn_dim", kMaxFfn);
  config.embed_dim =
      fields.optional_size("word_embed_proj_dim", kMaxHidden).value_or(config.hidden_size);
  config.norms.kind = Norm::kLayerNorm;
  config.norms.eps = 1e-5;  // not configurable in this family
  config.norms.weights = fields.flag("layer_norm_elementwise_affine", true);
  config.norms.bias = config.norms.weights;
  config.norms.before = fields.flag("do_layer_norm_before", true);
  config.norms.final_norm = config.norms.before && !fields.flag("_remove_final_layer_norm", false);
  config.mlp.activation = read_activation(fields, "activation_function", Activation::kRelu);
  config.mlp.gated = false;
  set_biases(fields.flag("enable_bias", true), config);
  config.embedding.position_offset = 2;  // rows 0 and 1 of the position table belong to padding
  config.embedding.tied = fields.flag("tie_word_embeddings", true);
}

void read_stablelm(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_sizes(fields, true, config);
  read_norm(fields, "layer_norm_eps", config);
  config.parallel_residual = fields.flag("use_parallel_residual", false);
  config.norms.shared = config.parallel_residual;
  config.mlp.activation = read_activation(fields, "hidden_act", Activation::kSilu);
  config.attention.qkv_bias = fields.flag("use_qkv_bias", false);
  config.embedding.tied = fields.flag("tie_word_embeddings", false);
  config.rope = read_rope(fields, {.partial = true, .rotary_fraction = 0.25}, config, notes);
}

void read_olmo(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_sizes(fields, false, config);
  config.norms.kind = Norm::kLayerNorm;
  config.norms.eps = 1e-5;  // not configurable in this family
  config.norms.weights = false;
  config.mlp.activation = read_activation(fields, "hidden_act", Activation::kSilu);
  config.attention.qkv_bias = config.attention.out_bias = fields.flag("attention_bias", false);
  config.embedding.tied = fields.flag("tie_word_embeddings", false);
  config.rope = read_rope(fields, {}, config, notes);
}

void read_cohere(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_cohere_like(fields, 500000.0, config, notes);
}

void read_cohere2(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  constexpr std::string_view kPositions = "position_embedding_type";
  const std::string positions = fields.optional_string(kPositions).value_or("rope_gptj");
  if (positions != "rope_gptj" && positions != "rope") {
    throw fields.error("E-CFG-FEATURE", kPositions).expected("rope_gptj");
  }
  read_cohere_like(fields, 10000.0, config, notes);
  const std::int64_t window = sliding_window(fields);
  if (window == 0) {
    throw fields.error("E-CFG-FEATURE", "sliding_window").expected("at least 1");
  }
  const std::int64_t pattern =
      fields.optional_size("sliding_window_pattern", kMaxLayers).value_or(4);
  read_window_pattern(fields, window, pattern, config);
  rotate_in_windows(config);
}

void read_starcoder2(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  config.naming = TensorNaming::kStarcoder2;
  read_sizes(fields, true, config);
  read_norm(fields, "norm_epsilon", config);
  config.mlp.activation = read_activation(fields, "hidden_act", Activation::kGeluTanh);
  config.mlp.gated = false;
  set_biases(fields.flag("use_bias", true), config);
  config.embedding.tied = fields.flag("tie_word_embeddings", true);
  config.rope = read_rope(fields, {}, config, notes);
  set_window(fields.count("sliding_window", kMaxPositions, 0), config);
}

void read_falcon(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  config.naming = TensorNaming::kFalcon;
  read_common_sizes(fields, {.default_positions = 2048}, config);
  read_head_dim(fields, std::nullopt, config);
  const bool newer = fields.flag("new_decoder_architecture", false);
  if (newer) {
    config.kv_heads = fields.optional_size("num_kv_heads", kMaxHeads).value_or(config.heads);
    if (config.heads % config.kv_heads != 0) {
      throw fields.error("E-CFG-HEADS", "num_kv_heads")
          .expected(fmt::format("a divisor of num_attention_heads, which is {}", config.heads));
    }
  } else if (fields.flag("multi_query", true)) {
    config.kv_heads = 1;
  }
  config.ffn_size =
      fields.optional_size("ffn_hidden_size", kMaxFfn).value_or(4 * config.hidden_size);
  read_norm(fields, "layer_norm_epsilon", config);
  config.parallel_residual = newer || fields.flag("parallel_attn", true);
  config.norms.shared =
      config.parallel_residual && (!newer || fields.count("num_ln_in_parallel_attn", 2, 2) != 2);
  config.mlp.activation = read_activation(fields, "activation", Activation::kGeluErf);
  config.mlp.gated = false;
  set_biases(fields.flag("bias", false), config);
  config.embedding.tied = fields.flag("tie_word_embeddings", true);
  config.rope = read_rope(fields, {}, config, notes);
}

void read_gpt2(const ConfigFields& fields, ModelConfig& config, Notes& /*notes*/) {
  config.naming = TensorNaming::kGpt2;
  read_common_sizes(
      fields,
      {.hidden = "n_embd", .layers = "n_layer", .heads = "n_head", .positions = "n_positions"},
      config);
  if (config.hidden_size % config.heads != 0) {
    throw fields.error("E-CFG-HEADS", "n_embd")
        .expected(fmt::format("a multiple of n_head, which is {}", config.heads));
  }
  config.head_dim = config.hidden_size / config.heads;
  if (config.head_dim > kMaxHeadDim) {
    throw fields.error("E-CFG-LIMIT", "n_embd")
        .expected(fmt::format("at most {} channels in a head", kMaxHeadDim));
  }
  config.ffn_size = fields.optional_size("n_inner", kMaxFfn).value_or(4 * config.hidden_size);
  read_norm(fields, "layer_norm_epsilon", config);
  config.mlp.activation = read_activation(fields, "activation_function", Activation::kGeluTanh);
  config.mlp.gated = false;
  set_biases(true, config);
  if (!fields.flag("scale_attn_weights", true)) config.attention.score_scale = 1.0;
  config.embedding.tied = fields.flag("tie_word_embeddings", true);
}

}  // namespace

std::vector<Family> layer_norm_families() {
  return {
      {"cohere", {"CohereForCausalLM", "CohereModel"}, read_cohere, {"logit_scale"}},
      {"cohere2",
       {"Cohere2ForCausalLM", "Cohere2Model"},
       read_cohere2,
       {"logit_scale", "position_embedding_type"}},
      {"falcon",
       {"FalconForCausalLM", "FalconModel"},
       read_falcon,
       {"new_decoder_architecture", "parallel_attn"}},
      {"gpt2", {"GPT2LMHeadModel", "GPT2Model"}, read_gpt2},
      {"gpt_neox",
       {"GPTNeoXForCausalLM", "GPTNeoXModel"},
       read_gpt_neox,
       {"use_parallel_residual"}},
      {"olmo", {"OlmoForCausalLM", "OlmoModel"}, read_olmo},
      {"opt", {"OPTForCausalLM", "OPTModel"}, read_opt},
      {"stablelm",
       {"StableLmForCausalLM", "StableLmModel"},
       read_stablelm,
       {"use_parallel_residual"}},
      {"starcoder2", {"Starcoder2ForCausalLM", "Starcoder2Model"}, read_starcoder2},
  };
}

}  // namespace triphase
