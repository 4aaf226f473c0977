#include "models/config/refused_features.h"

#include <array>

namespace triphase {
namespace {

struct Feature {
  std::string_view field;
  std::string_view expected;
};

// Refused unless false, 0 or null.
constexpr std::array<Feature, 16> kMustBeOff{{
    {"attn_logit_softcapping", "no soft-capping of attention scores"},
    {"final_logit_softcapping", "no soft-capping of logits"},
    {"alibi", "no ALiBi positions"},
    {"use_alibi", "no ALiBi positions"},
    {"parallel_attn", "attention and MLP one after the other"},
    {"parallel_attention", "attention and MLP one after the other"},
    {"new_decoder_architecture", "a plain decoder"},
    {"is_encoder_decoder", "a decoder-only model"},
    {"add_cross_attention", "a decoder-only model"},
    {"use_bidirectional_attention", "causal attention"},
    {"use_qk_norm", "queries and keys without norms"},
    {"qk_layernorm", "queries and keys without norms"},
    {"kv_lora_rank", "keys and values without low-rank compression"},
    {"use_mrope", "one rotary position per token"},
    {"attention_chunk_size", "attention without chunks"},
    {"no_rope_layers", "rotary positions in every layer"},
}};

// Numbers of experts: refused above 1.
constexpr std::array<std::string_view, 5> kExpertCounts{"num_local_experts", "num_experts",
                                                        "n_routed_experts", "moe_num_experts",
                                                        "num_experts_per_tok"};

// Factors: refused unless 1.
constexpr std::array<std::string_view, 6> kFactors{"logit_scale",          "logits_scaling",
                                                   "embedding_multiplier", "residual_multiplier",
                                                   "attention_multiplier", "lm_head_multiplier"};

bool off(const Json& value) {
  if (value.boolean() == false) return true;
  return value.number() == 0.0;
}

}  // namespace

void refuse_unsupported_features(const ConfigFields& fields) {
  for (const std::string_view key : {"quantization_config", "compression_config"}) {
    if (!fields.has(key)) continue;
    throw fields.error("E-CFG-QUANT", key)
        .expected("weights in F16, BF16 or F32")
        .hint("use the unquantized checkpoint of this model");
  }
  for (const Feature& feature : kMustBeOff) {
    const Json* value = fields.find(feature.field);
    if (value != nullptr && !off(*value)) {
      throw fields.error("E-CFG-FEATURE", feature.field).expected(feature.expected);
    }
  }
  for (const std::string_view key : kExpertCounts) {
    const Json* value = fields.find(key);
    if (value != nullptr && value->number().value_or(2.0) > 1.0) {
      throw fields.error("E-CFG-FEATURE", key).expected("a model without experts");
    }
  }
  for (const std::string_view key : kFactors) {
    const Json* value = fields.find(key);
    if (value != nullptr && value->number() != 1.0) {
      throw fields.error("E-CFG-FEATURE", key).expected("1");
    }
  }
  const Json* positions = fields.find("position_embedding_type");
  if (positions != nullptr) {
    const std::string* name = positions->string();
    if (name == nullptr || (*name != "rope" && *name != "absolute" && *name != "rotary")) {
      throw fields.error("E-CFG-FEATURE", "position_embedding_type").expected("rope or absolute");
    }
  }
  if (fields.family() != "gpt_neox" && fields.flag("use_parallel_residual", false)) {
    throw fields.error("E-CFG-FEATURE", "use_parallel_residual")
        .expected("attention and MLP one after the other");
  }
}

}  // namespace triphase
