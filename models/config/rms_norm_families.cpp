// Families with RMSNorm, gated MLPs and rotary positions: LLaMA and what grew out of it.

#include <fmt/format.h>

#include <algorithm>

#include "models/config/config_limits.h"
#include "models/config/families.h"
#include "models/config/rope_fields.h"

namespace triphase {
namespace {

// What LLaMA, Mistral, Qwen2 and Gemma have in common: RMSNorm, gated MLP, rotary positions.
void read_llama_like(const ConfigFields& fields, bool kv_heads_required, ModelConfig& config) {
  config.naming = TensorNaming::kLlama;
  read_common_sizes(fields, config);
  read_kv_heads(fields, kv_heads_required, config);
  config.ffn_size = fields.size("intermediate_size", kMaxFfn);
  config.norms.kind = Norm::kRmsNorm;
  config.norms.eps = read_norm_eps(fields, "rms_norm_eps", 1e-6);
  config.mlp.gated = true;
}

// 0: no window. transformers' own default for a missing field is 4096; null means none.
std::int64_t sliding_window(const ConfigFields& fields) {
  return fields.count("sliding_window", kMaxPositions, fields.present("sliding_window") ? 0 : 4096);
}

// Windows of the layers that layer_types names, or of those from max_window_layers on.
void read_chosen_windows(const ConfigFields& fields, ModelConfig& config) {
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

}  // namespace

void read_llama(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_llama_like(fields, false, config);
  read_head_dim(fields, std::nullopt, config);
  config.mlp.activation = read_activation(fields, "hidden_act", Activation::kSilu);
  const bool attention_bias = fields.flag("attention_bias", false);
  config.qkv_bias = attention_bias;
  config.attention_out_bias = attention_bias;
  config.mlp.bias = fields.flag("mlp_bias", false);
  config.embedding.tied = fields.flag("tie_word_embeddings", false);
  config.rope = read_rope(fields, {}, config, notes);
}

void read_mistral(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_llama_like(fields, true, config);
  read_head_dim(fields, std::nullopt, config);
  config.mlp.activation = read_activation(fields, "hidden_act", Activation::kSilu);
  config.embedding.tied = fields.flag("tie_word_embeddings", false);
  config.rope = read_rope(fields, {}, config, notes);
  const std::int64_t window = sliding_window(fields);
  if (window != 0) config.sliding_window.assign(static_cast<std::size_t>(config.layers), window);
}

void read_qwen2(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_llama_like(fields, true, config);
  read_head_dim(fields, std::nullopt, config);
  config.mlp.activation = read_activation(fields, "hidden_act", Activation::kSilu);
  config.qkv_bias = true;
  config.embedding.tied = fields.flag("tie_word_embeddings", false);
  config.rope = read_rope(fields, {}, config, notes);
  read_chosen_windows(fields, config);
}

void read_qwen3(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_qwen2(fields, config, notes);
  const bool attention_bias = fields.flag("attention_bias", false);
  config.qkv_bias = attention_bias;
  config.attention_out_bias = attention_bias;
  config.norms.qk = QkNorm::kHead;
}

void read_gemma(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_llama_like(fields, true, config);
  read_head_dim(fields, 256, config);
  config.norms.kind = Norm::kRmsNormPlusOne;
  // The released configs say "gelu" and mean the tanh form; transformers reads them so too.
  const auto tanh_form = [&](std::string_view key) {
    const Activation activation = read_activation(fields, key, Activation::kGeluTanh);
    return activation == Activation::kGeluErf ? Activation::kGeluTanh : activation;
  };
  config.mlp.activation = tanh_form("hidden_act");
  if (fields.has("hidden_activation") && fields.has("hidden_act") &&
      tanh_form("hidden_activation") != config.mlp.activation) {
    throw fields.error("E-CFG-ACT", "hidden_activation")
        .expected("the same function as hidden_act");
  }
  if (!fields.has("hidden_act")) config.mlp.activation = tanh_form("hidden_activation");
  const bool attention_bias = fields.flag("attention_bias", false);
  config.qkv_bias = attention_bias;
  config.attention_out_bias = attention_bias;
  config.embedding.tied = fields.flag("tie_word_embeddings", true);
  config.embedding.scaled = true;
  config.rope = read_rope(fields, {}, config, notes);
}

}  // namespace triphase
