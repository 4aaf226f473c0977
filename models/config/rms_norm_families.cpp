// Families with RMSNorm, gated MLPs and rotary positions: LLaMA and what grew out of it.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/config/config_limits.h"
#include "models/config/families.h"
#include "models/config/rope_fields.h"

namespace triphase {
namespace {

// What the text_config of LLaVA's checkpoints leaves out: the defaults of transformers' classes.
constexpr SizeFields sizes_inside(std::int64_t positions, std::int64_t ffn) {
  return {.default_hidden = 4096,
          .default_layers = 32,
          .default_heads = 32,
          .default_vocab = 32000,
          .default_positions = positions,
          .default_ffn = ffn};
}
constexpr SizeFields kLlamaInside = sizes_inside(2048, 11008);
constexpr SizeFields kMistralInside = sizes_inside(131072, 14336);

// What LLaMA, Mistral, Qwen2 and Gemma have in common. RMSNorm and a gated MLP are what ModelConfig
// says by itself.
void read_llama_like(const ConfigFields& fields, bool kv_heads_required, ModelConfig& config,
                     const SizeFields& sizes = {}) {
  read_common_sizes(fields, sizes, config);
  read_kv_heads(fields, kv_heads_required, config);
  config.ffn_size = read_size(fields, "intermediate_size", kMaxFfn, sizes.default_ffn);
  config.norms.eps = read_norm_eps(fields, "rms_norm_eps", sizes.default_eps);
}

void read_all_but_rope(const ConfigFields& fields, ModelConfig& config,
                       const SizeFields& sizes = {}) {
  read_llama_like(fields, false, config, sizes);
  read_head_dim(fields, std::nullopt, config);
  config.mlp.activation = read_activation(fields, "hidden_act", Activation::kSilu);
  config.attention.qkv_bias = config.attention.out_bias = fields.flag("attention_bias", false);
  config.mlp.bias = fields.flag("mlp_bias", false);
  config.embedding.tied = fields.flag("tie_word_embeddings", false);
}

// Mistral's generations, Qwen's and GLM.
void read_all_but_window(const ConfigFields& fields, ModelConfig& config, Notes& notes,
                         const SizeFields& sizes = {}, const RopeDefaults& rope = {}) {
  read_llama_like(fields, true, config, sizes);
  read_head_dim(fields, sizes.default_head_dim, config);
  config.mlp.activation = read_activation(fields, "hidden_act", Activation::kSilu);
  config.embedding.tied = fields.flag("tie_word_embeddings", false);
  config.rope = read_rope(fields, rope, config, notes);
}

// How many experts a layer has and how many a token goes through; transformers writes the first by
// either name.
void read_expert_counts(const ConfigFields& fields, std::string_view count_key,
                        std::string_view other_count_key, std::int64_t count_otherwise,
                        std::int64_t per_token_otherwise, ModelConfig& config) {
  constexpr std::string_view kPerToken = "num_experts_per_tok";
  const std::string_view key = fields.has(count_key) ? count_key : other_count_key;
  config.experts.count = fields.optional_size(key, kMaxExperts).value_or(count_otherwise);
  config.experts.per_token =
      fields.optional_size(kPerToken, kMaxExperts).value_or(per_token_otherwise);
  if (config.experts.per_token > config.experts.count) {
    throw fields.error("E-CFG-EXPERTS", kPerToken)
        .expected(fmt::format("at most {}, which is {}", fields.has(key) ? key : count_key,
                              config.experts.count));
  }
}

// Layers that mlp_only_layers names, and those between every decoder_sparse_step-th.
void read_plain_layers(const ConfigFields& fields, ModelConfig& config) {
  const auto layers = static_cast<std::size_t>(config.layers);
  const std::int64_t step = fields.optional_size("decoder_sparse_step", kMaxLayers).value_or(1);
  std::vector<bool> plain(layers);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    plain[layer] = (static_cast<std::int64_t>(layer) + 1) % step != 0;
  }
  if (const Json* named = fields.find("mlp_only_layers")) {
    const JsonArray* list = named->array();
    if (list == nullptr) throw fields.error("E-CFG-TYPE", "mlp_only_layers").expected("an array");
    for (std::size_t i = 0; i < list->size(); ++i) {
      const std::optional<std::int64_t> layer = (*list)[i].integer();
      if (!layer || *layer < 0 || *layer >= config.layers) {
        throw fields.element_error("E-CFG-EXPERTS", "mlp_only_layers", i, (*list)[i])
            .expected(fmt::format("a layer from 0 to {}", config.layers - 1));
      }
      plain[*layer] = true;
    }
  }
  const auto count = static_cast<std::size_t>(std::ranges::count(plain, true));
  if (count == layers) {
    throw fields
        .error("E-CFG-EXPERTS",
               fields.has("mlp_only_layers") ? "mlp_only_layers" : "decoder_sparse_step")
        .expected("a layer with experts");
  }
  if (count > 0) config.experts.plain_layers = std::move(plain);
}

// OLMo 2 and 3: norms of what branches give, and of whole queries and keys.
void read_olmo(const ConfigFields& fields, ModelConfig& config) {
  read_all_but_rope(fields, config, {.default_eps = 1e-5});
  config.norms.before = false;
  config.norms.output = true;
  config.norms.qk = QkNorm::kWidth;
}

// All that Gemma's generations share, once the sizes are read.
void read_gemma_like(const ConfigFields& fields, ModelConfig& config) {
  read_head_dim(fields, 256, config);
  config.norms.kind = Norm::kRmsNormPlusOne;
  config.attention.qkv_bias = config.attention.out_bias = fields.flag("attention_bias", false);
  config.embedding.tied = fields.flag("tie_word_embeddings", true);
  config.embedding.scaled = true;
}

// Gemma 2 and 3: norms before and after each branch, scores of a scale of their own.
void read_gemma2_like(const ConfigFields& fields, ModelConfig& config) {
  config.naming = TensorNaming::kGemma2;
  config.norms.output = true;
  // hidden_act, which some files have too, is not looked at.
  config.mlp.activation = read_activation(fields, "hidden_activation", Activation::kGeluTanh);
  const double query_scalar = fields.optional_number("query_pre_attn_scalar").value_or(256.0);
  if (!(query_scalar > 0.0) || !std::isfinite(query_scalar)) {
    throw fields.error("E-CFG-FEATURE", "query_pre_attn_scalar").expected("a number above 0");
  }
  config.attention.score_scale = 1.0 / std::sqrt(query_scalar);
}

// Refuses other values of a number that is computed as a constant.
void require_constant(const ConfigFields& fields, std::string_view key, float computed) {
  const double given = fields.optional_number(key).value_or(computed);
  if (static_cast<float>(given) == computed) return;
  throw fields.error("E-CFG-ACT", key).expected(fmt::format("{}", computed));
}

// read_windows() where use_sliding_window must be on for any.
template <class Slides>
void read_optional_windows(const ConfigFields& fields, const Slides& slides_otherwise,
                           ModelConfig& config) {
  const bool used = fields.flag("use_sliding_window", false);
  read_windows(fields, used ? sliding_window(fields) : 0,
               used ? "sliding_window" : "use_sliding_window", slides_otherwise, config);
}

// Qwen2 and Qwen3: windows from max_window_layers on.
void read_last_windows(const ConfigFields& fields, ModelConfig& config) {
  const std::int64_t first = fields.count("max_window_layers", kMaxPositions, 28);
  read_optional_windows(
      fields, [&](std::int64_t layer) { return layer >= first; }, config);
}

// For families whose default in transformers scales by numbers that no file names.
void require_rope(const ConfigFields& fields, std::string_view key) {
  if (rope_settings(fields)) return;
  throw fields.error("E-CFG-MISSING", key).expected("how rotary positions are scaled");
}

void read_llama(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_all_but_rope(fields, config, fields.top_level() ? SizeFields{} : kLlamaInside);
  config.rope = read_rope(fields, {}, config, notes);
}

void read_ministral(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_all_but_window(fields, config, notes);
  read_windows(
      fields, sliding_window(fields), "sliding_window", [](std::int64_t) { return true; }, config);
}

void read_mistral(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  // As transformers does, which looks for layer_types only where the type says what to load.
  if (fields.top_level() && fields.present("layer_types")) {
    return read_ministral(fields, config, notes);
  }
  read_all_but_window(fields, config, notes, fields.top_level() ? SizeFields{} : kMistralInside);
  set_window(sliding_window(fields), config);
}

void read_qwen2(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_all_but_window(fields, config, notes);
  read_last_windows(fields, config);
  config.attention.qkv_bias = true;
}

void read_qwen3(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_all_but_window(fields, config, notes, {.default_head_dim = 128});
  read_last_windows(fields, config);
  config.attention.qkv_bias = config.attention.out_bias = fields.flag("attention_bias", false);
  config.norms.qk = QkNorm::kHead;
}

void read_seed_oss(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_all_but_window(fields, config, notes, {.default_head_dim = 128});
  config.attention.qkv_bias = fields.flag("attention_bias", true);
  config.attention.out_bias = fields.flag("attention_out_bias", false);
  config.mlp.bias = fields.flag("mlp_bias", false);
}

void read_internlm3(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_all_but_window(fields, config, notes, {.default_head_dim = 128, .default_eps = 1e-5});
  // The names of its own files, and those of transformers.
  const auto flag = [&](std::string_view own, std::string_view other) {
    return fields.flag(fields.has(own) ? own : other, false);
  };
  config.attention.qkv_bias = flag("qkv_bias", "attention_bias");
  config.attention.out_bias = config.mlp.bias = flag("bias", "mlp_bias");
}

void read_ernie4_5(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_all_but_window(fields, config, notes, {.default_head_dim = 128, .default_eps = 1e-5},
                      {.theta = 500000.0});
  set_biases(fields.flag("use_bias", false), config);
  config.embedding.tied = fields.flag("tie_word_embeddings", true);
  config.rope->neighbours = true;
}

void read_mixtral(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_all_but_window(fields, config, notes, {.default_eps = 1e-5}, {.theta = 1e6});
  config.naming = TensorNaming::kMixtral;
  set_window(fields.count("sliding_window", kMaxPositions, 0), config);
  read_expert_counts(fields, "num_local_experts", "num_experts", 8, 2, config);
  config.experts.ffn_size = config.ffn_size;
}

void read_qwen3_moe(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_all_but_window(fields, config, notes);
  config.attention.qkv_bias = config.attention.out_bias = fields.flag("attention_bias", false);
  config.norms.qk = QkNorm::kHead;
  // In every layer, where there is one: max_window_layers is not looked at.
  set_window(fields.flag("use_sliding_window", false) ? sliding_window(fields) : 0, config);
  read_expert_counts(fields, "num_experts", "num_local_experts", 128, 8, config);
  config.experts.ffn_size = fields.optional_size("moe_intermediate_size", kMaxFfn).value_or(768);
  config.experts.shares_sum_to_one = fields.flag("norm_topk_prob", false);
  read_plain_layers(fields, config);
}

void read_gpt_oss(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  const std::optional<ConfigFields> quantized = fields.optional_object("quantization_config");
  if (quantized && quantized->optional_string("quant_method") != "mxfp4") {
    throw quantized->error("E-CFG-QUANT", "quant_method")
        .expected("mxfp4, or weights in F16, BF16 or F32");
  }
  read_llama_like(fields, true, config, {.default_eps = 1e-5});
  config.naming = TensorNaming::kGptOss;
  read_head_dim(fields, 64, config);
  config.attention.qkv_bias = config.attention.out_bias = fields.flag("attention_bias", true);
  config.attention.sinks = true;
  config.embedding.tied = fields.flag("tie_word_embeddings", false);
  config.mlp.activation = Activation::kSwigluOai;
  require_constant(fields, "swiglu_alpha", kSwigluOaiAlpha);
  require_constant(fields, "swiglu_limit", kSwigluOaiLimit);
  read_expert_counts(fields, "num_local_experts", "num_experts", 128, 4, config);
  config.experts.ffn_size = config.ffn_size;
  config.experts.bias = true;
  require_rope(fields, "rope_scaling");
  config.rope = read_rope(fields, {.theta = 150000.0}, config, notes);
  read_window_pattern(
      fields,
      fields.count("sliding_window", kMaxPositions, fields.present("sliding_window") ? 0 : 128), 2,
      config);
}

void read_smollm3(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_all_but_rope(fields, config);
  config.rope = read_rope(fields, {.theta = 2e6}, config, notes);
  const auto layers = static_cast<std::size_t>(config.layers);
  config.unrotated.resize(layers);
  if (const Json* rotated = fields.find("no_rope_layers")) {  // 1 where rope is applied
    const JsonArray* flags = rotated->array();
    if (flags == nullptr || flags->size() < layers) {
      throw fields.error("E-CFG-TYPE", "no_rope_layers")
          .expected(fmt::format("an array of {} numbers, one per layer", config.layers));
    }
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const std::optional<std::int64_t> flag = (*flags)[layer].integer();
      if (!flag || *flag < 0 || *flag > 1) {
        throw fields.element_error("E-CFG-TYPE", "no_rope_layers", layer, (*flags)[layer])
            .expected("0 or 1");
      }
      config.unrotated[layer] = flag == 0;
    }
  } else {
    const std::int64_t interval =
        fields.optional_size("no_rope_layer_interval", kMaxLayers).value_or(4);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      config.unrotated[layer] = (static_cast<std::int64_t>(layer) + 1) % interval == 0;
    }
  }
  config.embedding.tied = fields.flag("tie_word_embeddings", true);
  read_optional_windows(
      fields, [&](std::int64_t layer) { return !config.rotates(layer); }, config);
}

void read_olmo2(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_olmo(fields, config);
  config.rope = read_rope(fields, {}, config, notes);
}

void read_olmo3(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_olmo(fields, config);
  read_window_pattern(fields, sliding_window(fields), 4, config);
  constexpr double kTheta = 500000.0;
  config.rope = read_rope(fields, {.theta = kTheta, .layer_type = "full_attention"}, config, notes);
  config.window_rope = read_window_rope(fields, "rope_theta", kTheta, config);
}

void read_exaone4(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_all_but_window(fields, config, notes, {.default_eps = 1e-5});
  config.norms.before = false;
  config.norms.output = true;
  config.norms.qk = QkNorm::kHead;
  const std::int64_t window = sliding_window(fields);
  // Files whose pattern is a text ("LLLG") name the layers, too.
  const std::int64_t pattern =
      fields.has("layer_types")
          ? 1
          : fields.optional_size("sliding_window_pattern", kMaxLayers).value_or(4);
  read_window_pattern(fields, window, pattern, config);
  if (window != 0) rotate_in_windows(config);
}

void read_phi3(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_llama_like(fields, false, config, {.default_eps = 1e-5});
  config.naming = TensorNaming::kPhi3;
  read_head_dim(fields, std::nullopt, config);
  config.mlp.activation = read_activation(fields, "hidden_act", Activation::kSilu);
  config.embedding.tied = fields.flag("tie_word_embeddings", false);
  config.rope = read_rope(fields, {.partial = true, .original_positions = 4096}, config, notes);
  set_window(fields.count("sliding_window", kMaxPositions, 0), config);
}

void read_granite(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_all_but_rope(fields, config);
  config.rope = read_rope(fields, {}, config, notes);
  const auto factor = [&](std::string_view key) {
    const double value = fields.optional_number(key).value_or(1.0);
    if (!(value > 0.0) || !std::isfinite(value)) {
      throw fields.error("E-CFG-FEATURE", key).expected("a number above 0");
    }
    return value;
  };
  config.attention.score_scale = factor("attention_multiplier");
  config.logits.divisor = factor("logits_scaling");
  // The sum is kept divided by residual_multiplier, so that branches join it as they are. Norms
  // give the same numbers then, with an epsilon divided by the square.
  const double residual = factor("residual_multiplier");
  config.embedding.scale = static_cast<float>(factor("embedding_multiplier") / residual);
  config.norms.eps /= residual * residual;
}

void read_ministral3(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  require_rope(fields, "rope_parameters");
  read_all_but_window(fields, config, notes, {.default_head_dim = 128, .default_eps = 1e-5});
  set_window(fields.count("sliding_window", kMaxPositions, 0), config);
  const ConfigFields rope = *rope_settings(fields);
  if (rope.optional_number("llama_4_scaling_beta").value_or(0.0) == 0.0) return;
  // Queries would be multiplied by 1 + beta * log(1 + floor(position / original context)). Without
  // rope scaling the field still says where that begins.
  std::int64_t original = config.rope->original_max_positions;
  const RopeScaling scaling = config.rope->scaling;
  if (scaling != RopeScaling::kYarn && scaling != RopeScaling::kLlama3 &&
      scaling != RopeScaling::kLong) {
    original =
        rope.optional_size("original_max_position_embeddings", kMaxPositions).value_or(original);
  }
  if (original < 1) {
    throw rope.error("E-CFG-ROPE", "original_max_position_embeddings").expected("at least 1");
  }
  config.max_positions = std::min(config.max_positions, original);
  notes.push_back(
      fmt::format("config: llama_4_scaling_beta is not computed, so contexts end at {} tokens, up "
                  "to which it changes nothing",
                  config.max_positions));
}

void read_glm(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_all_but_window(fields, config, notes, {.default_head_dim = 128, .default_eps = 1.5625e-7},
                      {.partial = true, .rotary_fraction = 0.5});
  config.naming = TensorNaming::kGlm;
  config.attention.qkv_bias = fields.flag("attention_bias", true);
  config.rope->neighbours = true;
}

void read_glm4(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_glm(fields, config, notes);
  config.norms.output = true;
}

void read_gemma(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_llama_like(fields, true, config);
  read_gemma_like(fields, config);
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
  config.rope = read_rope(fields, {}, config, notes);
}

void read_gemma2(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  read_llama_like(fields, true, config);
  read_gemma_like(fields, config);
  read_gemma2_like(fields, config);
  read_window_pattern(fields, sliding_window(fields), 2, config);
  config.rope = read_rope(fields, {}, config, notes);
  const auto cap = [&](std::string_view key, double otherwise) {
    const double value =
        fields.optional_number(key).value_or(fields.present(key) ? 0.0 : otherwise);
    if (!(value >= 0.0) || !std::isfinite(value)) {
      throw fields.error("E-CFG-FEATURE", key).expected("a number above 0, or null");
    }
    return value;
  };
  config.attention.score_cap = cap("attn_logit_softcapping", 50.0);
  config.logits.cap = cap("final_logit_softcapping", 30.0);
}

void read_gemma3(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  // Released files leave out what transformers fills in.
  read_llama_like(fields, false, config,
                  {.default_heads = 8, .default_vocab = 262208, .default_positions = 131072});
  if (!fields.has("num_key_value_heads")) config.kv_heads = 4;
  if (config.heads % config.kv_heads != 0) {
    throw fields.error("E-CFG-HEADS", "num_key_value_heads")
        .expected(fmt::format("a divisor of num_attention_heads, which is {}", config.heads));
  }
  read_gemma_like(fields, config);
  read_gemma2_like(fields, config);
  config.norms.qk = QkNorm::kHead;
  const std::int64_t pattern =
      fields.optional_size("sliding_window_pattern", kMaxLayers).value_or(6);
  read_window_pattern(fields, sliding_window(fields), pattern, config);
  config.rope = read_rope(fields, {.theta = 1e6, .layer_type = "full_attention", .extended = true},
                          config, notes);
  config.window_rope = read_window_rope(fields, "rope_local_base_freq", 10000.0, config);
}

}  // namespace

std::vector<Family> rms_norm_families() {
  return {
      {"ernie4_5", {"Ernie4_5ForCausalLM", "Ernie4_5Model"}, read_ernie4_5},
      {"exaone4", {"Exaone4ForCausalLM", "Exaone4Model"}, read_exaone4},
      {"gemma", {"GemmaForCausalLM", "GemmaModel"}, read_gemma},
      {"gemma2",
       {"Gemma2ForCausalLM", "Gemma2Model"},
       read_gemma2,
       {"attn_logit_softcapping", "final_logit_softcapping"}},
      {"gemma3_text", {"Gemma3ForCausalLM", "Gemma3TextModel"}, read_gemma3},
      {"glm", {"GlmForCausalLM", "GlmModel"}, read_glm},
      {"glm4", {"Glm4ForCausalLM", "Glm4Model"}, read_glm4},
      {"gpt_oss",
       {"GptOssForCausalLM", "GptOssModel"},
       read_gpt_oss,
       {"num_local_experts", "num_experts", "num_experts_per_tok", "quantization_config"}},
      {"granite",
       {"GraniteForCausalLM", "GraniteModel"},
       read_granite,
       {"attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier"}},
      // transformers saves it with the class that computes it, LLaMA's.
      {"internlm3",
       {"InternLM3ForCausalLM", "InternLM3Model", "LlamaForCausalLM", "LlamaModel"},
       read_internlm3},
      // The first conversions of LLaMA spelled it with two more capitals.
      {"llama", {"LlamaForCausalLM", "LlamaModel", "LLaMAForCausalLM"}, read_llama},
      {"ministral", {"MinistralForCausalLM", "MinistralModel"}, read_ministral},
      {"ministral3", {"Ministral3ForCausalLM", "Ministral3Model"}, read_ministral3},
      {"mistral", {"MistralForCausalLM", "MistralModel"}, read_mistral},
      {"mixtral",
       {"MixtralForCausalLM", "MixtralModel"},
       read_mixtral,
       {"num_local_experts", "num_experts", "num_experts_per_tok"}},
      {"olmo2", {"Olmo2ForCausalLM", "Olmo2Model"}, read_olmo2},
      {"olmo3", {"Olmo3ForCausalLM", "Olmo3Model"}, read_olmo3},
      {"phi3", {"Phi3ForCausalLM", "Phi3Model"}, read_phi3},
      {"qwen2", {"Qwen2ForCausalLM", "Qwen2Model"}, read_qwen2},
      {"qwen3", {"Qwen3ForCausalLM", "Qwen3Model"}, read_qwen3},
      {"qwen3_moe",
       {"Qwen3MoeForCausalLM", "Qwen3MoeModel"},
       read_qwen3_moe,
       {"num_local_experts", "num_experts", "num_experts_per_tok"}},
      {"seed_oss", {"SeedOssForCausalLM", "SeedOssModel"}, read_seed_oss},
      {"smollm3", {"SmolLM3ForCausalLM", "SmolLM3Model"}, read_smollm3, {"no_rope_layers"}},
  };
}

}  // namespace triphase
