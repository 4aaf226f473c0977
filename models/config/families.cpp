#include "models/config/families.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "models/config/config_limits.h"
#include "models/config/rope_fields.h"

namespace triphase {
namespace {

constexpr std::array<std::string_view, 2> kGemma{"GemmaForCausalLM", "GemmaModel"};
constexpr std::array<std::string_view, 2> kGptNeox{"GPTNeoXForCausalLM", "GPTNeoXModel"};
// The first conversions of LLaMA spelled it with two more capitals.
constexpr std::array<std::string_view, 3> kLlama{"LlamaForCausalLM", "LlamaModel",
                                                 "LLaMAForCausalLM"};
constexpr std::array<std::string_view, 2> kMistral{"MistralForCausalLM", "MistralModel"};
constexpr std::array<std::string_view, 2> kOpt{"OPTForCausalLM", "OPTModel"};
constexpr std::array<std::string_view, 2> kQwen2{"Qwen2ForCausalLM", "Qwen2Model"};

constexpr std::array<Family, 6> kFamilies{{
    {"gemma", kGemma, read_gemma},
    {"gpt_neox", kGptNeox, read_gpt_neox},
    {"llama", kLlama, read_llama},
    {"mistral", kMistral, read_mistral},
    {"opt", kOpt, read_opt},
    {"qwen2", kQwen2, read_qwen2},
}};

// What LLaMA, Mistral, Qwen2 and Gemma have in common: RMSNorm, gated MLP, rotary positions.
void read_llama_like(const ConfigFields& fields, bool kv_heads_required, ModelConfig& config) {
  config.naming = TensorNaming::kLlama;
  read_common_sizes(fields, config);
  read_kv_heads(fields, kv_heads_required, config);
  config.ffn_size = fields.size("intermediate_size", kMaxFfn);
  config.norm = Norm::kRmsNorm;
  config.norm_eps = read_norm_eps(fields, "rms_norm_eps", 1e-6);
  config.gated_mlp = true;
}

// 0: no window. transformers' own default for a missing field is 4096; null means none.
std::int64_t sliding_window(const ConfigFields& fields) {
  return fields.count("sliding_window", kMaxPositions, fields.present("sliding_window") ? 0 : 4096);
}

}  // namespace

std::span<const Family> families() { return kFamilies; }

void read_llama(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_llama_like(fields, false, config);
  read_head_dim(fields, std::nullopt, config);
  config.activation = read_activation(fields, "hidden_act", Activation::kSilu);
  const bool attention_bias = fields.flag("attention_bias", false);
  config.qkv_bias = attention_bias;
  config.attention_out_bias = attention_bias;
  config.mlp_bias = fields.flag("mlp_bias", false);
  config.tied_embeddings = fields.flag("tie_word_embeddings", false);
  config.rope = read_rope(fields, {}, config, notes);
}

void read_mistral(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_llama_like(fields, true, config);
  read_head_dim(fields, std::nullopt, config);
  config.activation = read_activation(fields, "hidden_act", Activation::kSilu);
  config.tied_embeddings = fields.flag("tie_word_embeddings", false);
  config.rope = read_rope(fields, {}, config, notes);
  const std::int64_t window = sliding_window(fields);
  if (window != 0) config.sliding_window.assign(static_cast<std::size_t>(config.layers), window);
}

void read_qwen2(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_llama_like(fields, true, config);
  read_head_dim(fields, std::nullopt, config);
  config.activation = read_activation(fields, "hidden_act", Activation::kSilu);
  config.qkv_bias = true;
  config.tied_embeddings = fields.flag("tie_word_embeddings", false);
  config.rope = read_rope(fields, {}, config, notes);

  const bool use_window = fields.flag("use_sliding_window", false);
  const std::int64_t window = use_window ? sliding_window(fields) : 0;
  const auto layers = static_cast<std::size_t>(config.layers);
  std::vector<std::int64_t> windows(layers, 0);
  if (const Json* types = fields.find("layer_types")) {
    const JsonArray* names = types->array();
    if (names == nullptr || names->size() != layers) {
      throw fields.error("E-CFG-TYPE", "layer_types")
          .expected(fmt::format("an array of {} names, one per layer", config.layers));
    }
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const std::string* name = (*names)[layer].string();
      const bool slides = name != nullptr && *name == "sliding_attention";
      if (!slides && (name == nullptr || *name != "full_attention")) {
        throw Error(ErrorRole::kModel, "E-CFG-FEATURE", fmt::format("layer_types[{}]", layer))
            .file(fields.file())
            .found((*names)[layer].describe())
            .expected("full_attention or sliding_attention");
      }
      if (slides && window == 0) {
        throw fields.error("E-CFG-FEATURE", use_window ? "sliding_window" : "use_sliding_window")
            .expected("a window: layer_types asks for sliding_attention");
      }
      windows[layer] = slides ? window : 0;
    }
  } else if (window != 0) {
    const std::int64_t first = fields.count("max_window_layers", kMaxPositions, 28);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      if (static_cast<std::int64_t>(layer) >= first) windows[layer] = window;
    }
  }
  if (std::any_of(windows.begin(), windows.end(), [](std::int64_t w) { return w != 0; })) {
    config.sliding_window = std::move(windows);
  }
}

void read_gemma(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_llama_like(fields, true, config);
  read_head_dim(fields, 256, config);
  config.norm = Norm::kRmsNormPlusOne;
  // The released configs say "gelu" and mean the tanh form; transformers reads them so too.
  const auto tanh_form = [&](std::string_view key) {
    const Activation activation = read_activation(fields, key, Activation::kGeluTanh);
    return activation == Activation::kGeluErf ? Activation::kGeluTanh : activation;
  };
  config.activation = tanh_form("hidden_act");
  if (fields.has("hidden_activation") && fields.has("hidden_act") &&
      tanh_form("hidden_activation") != config.activation) {
    throw fields.error("E-CFG-ACT", "hidden_activation")
        .expected("the same function as hidden_act");
  }
  if (!fields.has("hidden_act")) config.activation = tanh_form("hidden_activation");
  const bool attention_bias = fields.flag("attention_bias", false);
  config.qkv_bias = attention_bias;
  config.attention_out_bias = attention_bias;
  config.tied_embeddings = fields.flag("tie_word_embeddings", true);
  config.scaled_embeddings = true;
  config.rope = read_rope(fields, {}, config, notes);
}

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
  config.norm = Norm::kLayerNorm;
  config.norm_bias = true;
  config.norm_eps = read_norm_eps(fields, "layer_norm_eps", 1e-5);
  config.parallel_residual = fields.flag("use_parallel_residual", true);
  config.activation = read_activation(fields, "hidden_act", Activation::kGeluErf);
  config.gated_mlp = false;
  const bool attention_bias = fields.flag("attention_bias", true);
  config.qkv_bias = attention_bias;
  config.attention_out_bias = attention_bias;
  config.mlp_bias = true;
  config.tied_embeddings = fields.flag("tie_word_embeddings", false);
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
  config.norm = Norm::kLayerNorm;
  config.norm_eps = 1e-5;  // not configurable in this family
  config.norm_weights = fields.flag("layer_norm_elementwise_affine", true);
  config.norm_bias = config.norm_weights;
  config.norm_before = fields.flag("do_layer_norm_before", true);
  config.final_norm = config.norm_before && !fields.flag("_remove_final_layer_norm", false);
  config.activation = read_activation(fields, "activation_function", Activation::kRelu);
  config.gated_mlp = false;
  const bool bias = fields.flag("enable_bias", true);
  config.qkv_bias = bias;
  config.attention_out_bias = bias;
  config.mlp_bias = bias;
  config.position_offset = 2;  // rows 0 and 1 of the position table belong to padding
  config.tied_embeddings = fields.flag("tie_word_embeddings", true);
}

}  // namespace triphase
