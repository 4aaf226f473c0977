#include "models/config/families.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "models/config/config_fields.h"
#include "models/config/config_limits.h"
#include "models/config/model_config.h"

namespace triphase {
namespace {

// Rotary embedding settings from a config, in both layouts that exist: rope_theta and rope_scaling
// at the top level (transformers 4), or all of it inside rope_parameters (transformers 5).

// How a family spells what the layouts leave open.
struct RopeDefaults {
  std::string_view theta_key = "rope_theta";  // top-level name; GPT-NeoX: rotary_emb_base
  bool partial = false;                       // may rotate a part of each head
  double rotary_fraction = 1.0;               // when none is given
};

constexpr std::string_view kTypes = "default, linear, dynamic, yarn or llama3";

RopeScaling scaling_type(const ConfigFields& rope) {
  const auto newer = rope.optional_string("rope_type");
  const auto older = rope.optional_string("type");
  if (newer && older && *newer != *older) {
    throw Error(ErrorRole::kModel, "E-CFG-ROPE", rope.path("rope_type"))
        .file(rope.file())
        .found(fmt::format("\"{}\" here and \"{}\" in type", escape_untrusted(*newer),
                           escape_untrusted(*older)))
        .expected("one scaling type");
  }
  const std::string_view key = newer ? "rope_type" : "type";
  const std::string name = newer ? *newer : older.value_or("default");
  if (name == "default") return RopeScaling::kNone;
  if (name == "linear") return RopeScaling::kLinear;
  if (name == "dynamic") return RopeScaling::kDynamic;
  if (name == "yarn") return RopeScaling::kYarn;
  if (name == "llama3") return RopeScaling::kLlama3;
  throw rope.error("E-CFG-ROPE", key).expected(kTypes);
}

double positive(const ConfigFields& rope, std::string_view key, std::optional<double> otherwise) {
  std::optional<double> value = rope.optional_number(key);
  if (!value) value = otherwise;
  if (!value || !(*value > 0.0) || !std::isfinite(*value)) {
    throw rope.error("E-CFG-ROPE", key).expected("a number above 0");
  }
  return *value;
}

std::optional<double> optional_positive(const ConfigFields& rope, std::string_view key) {
  if (!rope.has(key)) return std::nullopt;
  return positive(rope, key, std::nullopt);
}

// The one value of a setting that several fields may carry; they must agree.
std::optional<double> agreed(const ConfigFields& fields, const std::optional<ConfigFields>& rope,
                             std::initializer_list<std::string_view> top_keys,
                             std::string_view rope_key) {
  std::optional<double> value;
  std::string where;
  const auto take = [&](const ConfigFields& from, std::string_view key) {
    const std::optional<double> here = optional_positive(from, key);
    if (!here) return;
    if (value && *value != *here) {
      throw from.error("E-CFG-ROPE", key)
          .expected(fmt::format("the value of {}, which is {}", where, json_number(*value)));
    }
    value = here;
    where = from.path(key);
  };
  if (rope) take(*rope, rope_key);
  for (const std::string_view key : top_keys) take(fields, key);
  return value;
}

void read_yarn(const ConfigFields& rope, RopeConfig& result) {
  result.attention_factor = optional_positive(rope, "attention_factor");
  // Published code reads 0 as "not given" for these four.
  const auto or_default = [&](std::string_view key, double otherwise) {
    const double value = rope.optional_number(key).value_or(0.0);
    return value == 0.0 ? otherwise : positive(rope, key, std::nullopt);
  };
  result.beta_fast = or_default("beta_fast", 32.0);
  result.beta_slow = or_default("beta_slow", 1.0);
  if (result.beta_fast < result.beta_slow) {
    throw rope.error("E-CFG-ROPE", "beta_fast")
        .expected(fmt::format("at least beta_slow, which is {}", json_number(result.beta_slow)));
  }
  const double mscale = or_default("mscale", 0.0);
  const double mscale_all_dim = or_default("mscale_all_dim", 0.0);
  if (mscale != 0.0) result.mscale = mscale;
  if (mscale_all_dim != 0.0) result.mscale_all_dim = mscale_all_dim;
  result.yarn_truncate = rope.flag("truncate", true);
}

void read_scaling(const ConfigFields& fields, const ConfigFields& rope, RopeConfig& result,
                  ModelConfig& config) {
  const std::int64_t given = config.max_positions;
  result.original_max_positions = given;
  if (result.scaling == RopeScaling::kYarn || result.scaling == RopeScaling::kLlama3) {
    std::optional<std::int64_t> original =
        rope.optional_size("original_max_position_embeddings", kMaxPositions);
    if (!original) {
      original = fields.optional_size("original_max_position_embeddings", kMaxPositions);
    }
    if (original) result.original_max_positions = *original;
  }
  std::optional<double> implied;
  if (result.scaling == RopeScaling::kYarn && result.original_max_positions < given) {
    implied = static_cast<double>(given) / static_cast<double>(result.original_max_positions);
  }
  result.factor = positive(rope, "factor", implied);
  if (result.factor < 1.0) throw rope.error("E-CFG-ROPE", "factor").expected("at least 1");
  if (result.scaling == RopeScaling::kYarn) read_yarn(rope, result);
  if (result.scaling == RopeScaling::kLlama3) {
    result.low_freq_factor = positive(rope, "low_freq_factor", std::nullopt);
    result.high_freq_factor = positive(rope, "high_freq_factor", std::nullopt);
    if (result.high_freq_factor <= result.low_freq_factor) {
      throw rope.error("E-CFG-ROPE", "high_freq_factor")
          .expected(fmt::format("more than low_freq_factor, which is {}",
                                json_number(result.low_freq_factor)));
    }
    return;  // LLaMA 3.1 configs give the extended length as max_position_embeddings
  }
  const double extended = static_cast<double>(result.original_max_positions) * result.factor;
  const double capped = std::min(extended, static_cast<double>(kMaxPositions));
  config.max_positions = std::max(given, static_cast<std::int64_t>(capped));
}

// Reads the rotary settings and raises config.max_positions where scaling extends the context.
// Needs config.head_dim and config.max_positions (max_position_embeddings). Throws E-CFG-ROPE for
// scaling types that are not computed and for missing or senseless values.
RopeConfig read_rope(const ConfigFields& fields, const RopeDefaults& defaults, ModelConfig& config,
                     Notes& notes) {
  const std::optional<ConfigFields> older = fields.optional_object("rope_scaling");
  const std::optional<ConfigFields> newer = fields.optional_object("rope_parameters");
  if (older && newer) notes.push_back("config: rope_scaling is used, rope_parameters is ignored");
  const std::optional<ConfigFields>& rope = older ? older : newer;

  RopeConfig result;
  result.theta =
      agreed(fields, rope, {defaults.theta_key, "rope_theta"}, "rope_theta").value_or(10000.0);
  if (result.theta <= 1.0) {
    throw Error(ErrorRole::kModel, "E-CFG-ROPE", "rope_theta")
        .file(fields.file())
        .found(json_number(result.theta))
        .expected("more than 1");
  }
  const double fraction =
      agreed(fields, rope, {"partial_rotary_factor", "rotary_pct"}, "partial_rotary_factor")
          .value_or(defaults.rotary_fraction);
  if (!defaults.partial && fraction != 1.0) {
    throw Error(ErrorRole::kModel, "E-CFG-FEATURE", "partial_rotary_factor")
        .file(fields.file())
        .found(json_number(fraction))
        .expected(fmt::format("1 in models of type {}", fields.family()));
  }
  if (fraction > 1.0) {
    throw Error(ErrorRole::kModel, "E-CFG-ROPE", "partial_rotary_factor")
        .file(fields.file())
        .found(json_number(fraction))
        .expected("at most 1");
  }
  result.rotary_dim = static_cast<std::int64_t>(static_cast<double>(config.head_dim) * fraction);
  if (result.rotary_dim < 2 || result.rotary_dim % 2 != 0) {
    throw Error(ErrorRole::kModel, "E-CFG-ROPE", "rotary dimension")
        .file(fields.file())
        .found(fmt::format("{} of {} channels", result.rotary_dim, config.head_dim))
        .expected("an even number of at least 2");
  }
  if (!rope) return result;
  if (rope->has("mrope_section")) {
    throw rope->error("E-CFG-ROPE", "mrope_section").expected("one rotary position per token");
  }
  if (older && !older->has("rope_type") && !older->has("type")) {
    throw older->error("E-CFG-ROPE", "rope_type").expected(kTypes);
  }
  result.scaling = scaling_type(*rope);
  if (result.scaling == RopeScaling::kNone) return result;
  if (result.scaling == RopeScaling::kDynamic && result.rotary_dim < 4) {
    throw Error(ErrorRole::kModel, "E-CFG-ROPE", "rotary dimension")
        .file(fields.file())
        .found(std::to_string(result.rotary_dim))
        .expected("at least 4 with dynamic scaling");
  }
  read_scaling(fields, *rope, result, config);
  if (config.max_positions != fields.size("max_position_embeddings", kMaxPositions)) {
    notes.push_back(
        fmt::format("config: rope scaling extends the context to {} tokens", config.max_positions));
  }
  return result;
}

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
  config.norms.kind = Norm::kRmsNorm;
  config.norms.eps = read_norm_eps(fields, "rms_norm_eps", 1e-6);
  config.mlp.gated = true;
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
