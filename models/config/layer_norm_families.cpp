// Families with LayerNorm.

#include <fmt/format.h>

#include "models/config/config_limits.h"
#include "models/config/families.h"
#include "models/config/rope_fields.h"

namespace triphase {

void read_gpt_neox(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  config.naming = TensorNaming::kGptNeox;
  read_common_sizes(fields, config);
  read_head_dim(fields, std::nullopt, config);
  if (config.q_width() != config.hidden_size) {
    throw fields.error("E-CFG-HEADS", "head_dim")
        .expected(fmt::format("hidden_size / num_attention_heads = {} / {}", config.hidden_size,
                              config.heads));
  }
  config.ffn_size = fields.size("intermediate_size", kMaxFfn);
  config.norms.kind = Norm::kLayerNorm;
  config.norms.bias = true;
  config.norms.eps = read_norm_eps(fields, "layer_norm_eps", 1e-5);
  config.parallel_residual = fields.flag("use_parallel_residual", true);
  config.mlp.activation = read_activation(fields, "hidden_act", Activation::kGeluErf);
  config.mlp.gated = false;
  const bool attention_bias = fields.flag("attention_bias", true);
  config.qkv_bias = attention_bias;
  config.attention_out_bias = attention_bias;
  config.mlp.bias = true;
  config.embedding.tied = fields.flag("tie_word_embeddings", false);
  config.rope =
      read_rope(fields, {.theta_key = "rotary_emb_base", .partial = true, .rotary_fraction = 0.25},
                config, notes);
}

void read_opt(const ConfigFields& fields, ModelConfig& config, Notes& /*notes*/) {
  config.naming = TensorNaming::kOpt;
  read_common_sizes(fields, config);
  read_head_dim(fields, std::nullopt, config);
  if (config.q_width() != config.hidden_size) {
    throw fields.error("E-CFG-HEADS", "head_dim")
        .expected(fmt::format("hidden_size / num_attention_heads = {} / {}", config.hidden_size,
                              config.heads));
  }
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
  const bool bias = fields.flag("enable_bias", true);
  config.qkv_bias = bias;
  config.attention_out_bias = bias;
  config.mlp.bias = bias;
  config.embedding.position_offset = 2;  // rows 0 and 1 of the position table belong to padding
  config.embedding.tied = fields.flag("tie_word_embeddings", true);
}

}  // namespace triphase
