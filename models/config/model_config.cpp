#include "models/config/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "models/config/config_fields.h"
#include "models/config/families.h"

namespace triphase {
namespace {

// Config fields that change what a model computes in ways the decoder does not support. They are
// refused by name, because ignoring one would give fluent but wrong text.

struct Feature {
  std::string_view field;
  std::string_view expected;
};

// Refused unless false, 0 or null.
constexpr std::array<Feature, 19> kMustBeOff{{
    {"attn_logit_softcapping", "no soft-capping of attention scores"},
    {"final_logit_softcapping", "no soft-capping of logits"},
    {"alibi", "no ALiBi positions"},
    {"use_alibi", "no ALiBi positions"},
    {"parallel_attn", "attention and MLP one after the other"},
    {"parallel_attention", "attention and MLP one after the other"},
    {"use_parallel_residual", "attention and MLP one after the other"},
    {"scale_attn_by_inverse_layer_idx", "scores on one scale in every layer"},
    {"new_decoder_architecture", "a plain decoder"},
    {"is_encoder_decoder", "a decoder-only model"},
    {"add_cross_attention", "a decoder-only model"},
    {"use_bidirectional_attention", "causal attention"},
    {"use_qk_norm", "queries and keys without norms"},
    {"qk_layernorm", "queries and keys without norms"},
    {"clip_qkv", "queries, keys and values without limits"},
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

bool reads(const Family& family, std::string_view field) {
  return std::ranges::count(family.reads, field) != 0;
}

void refuse_quantized(const ConfigFields& fields, const Family& family) {
  for (const std::string_view key : {"quantization_config", "compression_config"}) {
    if (!fields.has(key) || reads(family, key)) continue;
    const Json* method = fields.find(key)->find("quant_method");
    throw fields.error("E-CFG-QUANT", key)
        .found(method == nullptr ? "quantized weights"
                                 : fmt::format("quant_method {}", method->describe()))
        .expected("weights in F16, BF16 or F32")
        .hint("use the unquantized checkpoint of this model");
  }
}

// Throws E-CFG-FEATURE.
void refuse_unsupported_features(const ConfigFields& fields, const Family& family) {
  const auto read = [&](std::string_view field) { return reads(family, field); };
  for (const Feature& feature : kMustBeOff) {
    const Json* value = fields.find(feature.field);
    if (value != nullptr && !off(*value) && !read(feature.field)) {
      throw fields.error("E-CFG-FEATURE", feature.field).expected(feature.expected);
    }
  }
  // transformers takes null for false here, too.
  constexpr std::string_view kCausal = "is_causal";
  const Json* causal = fields.find(kCausal);
  if (fields.present(kCausal) && (causal == nullptr || off(*causal))) {
    throw fields.error("E-CFG-FEATURE", kCausal).expected("causal attention");
  }
  for (const std::string_view key : kExpertCounts) {
    const Json* value = fields.find(key);
    if (value != nullptr && value->number().value_or(2.0) > 1.0 && !read(key)) {
      throw fields.error("E-CFG-FEATURE", key).expected("a model without experts");
    }
  }
  for (const std::string_view key : kFactors) {
    const Json* value = fields.find(key);
    if (value != nullptr && value->number() != 1.0 && !read(key)) {
      throw fields.error("E-CFG-FEATURE", key).expected("1");
    }
  }
  const Json* positions = fields.find("position_embedding_type");
  if (positions != nullptr && !read("position_embedding_type")) {
    const std::string* name = positions->string();
    if (name == nullptr || (*name != "rope" && *name != "absolute" && *name != "rotary")) {
      throw fields.error("E-CFG-FEATURE", "position_embedding_type").expected("rope or absolute");
    }
  }
}

// Models around a language model that tie its output head where they do not say.
constexpr std::array<std::string_view, 15> kTyingWrappers{"deepseek_vl",
                                                          "deepseek_vl_hybrid",
                                                          "gemma3",
                                                          "got_ocr2",
                                                          "granite_speech",
                                                          "granite_speech_plus",
                                                          "internvl",
                                                          "janus",
                                                          "lighton_ocr",
                                                          "mistral3",
                                                          "moss_transcribe_diarize",
                                                          "ovis2",
                                                          "paligemma",
                                                          "pp_chart2table",
                                                          "qwen3_asr"};

void refuse_both_ways(const ConfigFields& whole, const ConfigFields& fields) {
  constexpr std::string_view kKey = "use_bidirectional_attention";
  if (whole.optional_string("model_type") != "paligemma" || fields.has(kKey)) return;
  throw fields.error("E-CFG-FEATURE", kKey)
      .expected("false: a PaliGemma that does not say attends both ways");
}

// What is around a language model decides about its output head, as in transformers. A true inside
// counts too: LLaVA's kin inherit it, and elsewhere a head in the files shows that it is not meant
// (weight_lookup.h).
void read_outer_tie(const ConfigFields& whole, const ConfigFields& fields, ModelConfig& config) {
  constexpr std::string_view kKey = "tie_word_embeddings";
  const std::string type = whole.optional_string("model_type").value_or("");
  if (whole.has(kKey)) {
    config.embedding.tied = whole.flag(kKey, false) || (fields.has(kKey) && config.embedding.tied);
  } else if (std::ranges::count(kTyingWrappers, type) != 0) {
    config.embedding.tied = true;
  }
}

constexpr std::size_t kMaxEosIds = 64;

std::string supported_types() {
  std::string names;
  for (std::size_t index = 0; index < families().size(); ++index) {
    if (index != 0) names += index + 1 == families().size() ? " or " : ", ";
    names += families()[index].model_type;
  }
  return names;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

std::string nearest_hint(std::string_view name) {
  const std::string_view cut = name.substr(0, 40);
  std::string_view nearest;
  std::size_t best = cut.size() + 40;
  for (const Family& family : families()) {
    for (const std::string_view known : {family.model_type, family.architectures[0]}) {
      const std::size_t distance = edit_distance(cut, known);
      if (distance < best) {
        best = distance;
        nearest = family.model_type;
      }
    }
  }
  if (2 * best > cut.size()) return "";
  return fmt::format("the nearest supported type is {}; other types compute something else",
                     nearest);
}

// architectures[0], or nothing when the list is absent or empty.
std::optional<std::string> first_architecture(const ConfigFields& fields) {
  const Json* list = fields.find("architectures");
  if (list == nullptr) return std::nullopt;
  const JsonArray* names = list->array();
  if (names == nullptr) throw fields.error("E-CFG-TYPE", "architectures").expected("an array");
  if (names->empty()) return std::nullopt;
  const std::string* name = names->front().string();
  if (name == nullptr) {
    throw fields.element_error("E-CFG-TYPE", "architectures", 0, names->front())
        .expected("a string");
  }
  return *name;
}

const Family& find_family(const ConfigFields& fields, std::string& architecture) {
  const std::optional<std::string> type = fields.optional_string("model_type");
  const std::optional<std::string> class_name = first_architecture(fields);
  if (!type && !class_name) {
    throw fields.error("E-CFG-MISSING", "model_type").expected(supported_types());
  }
  const Family* by_type = nullptr;
  const Family* by_class = nullptr;
  for (const Family& family : families()) {
    if (type && family.model_type == *type) by_type = &family;
    // InternLM3 shares LLaMA's class: the type says whose it is, and without one it is LLaMA's.
    if (class_name && std::ranges::count(family.architectures, *class_name) != 0 &&
        (by_class == nullptr || by_class != by_type)) {
      by_class = &family;
    }
  }
  if (type && by_type == nullptr) {
    throw fields.error("E-CFG-MODEL", "model_type")
        .expected(supported_types())
        .hint(nearest_hint(*type));
  }
  if (class_name && by_class == nullptr) {
    throw Error(ErrorRole::kModel, "E-CFG-MODEL", "architectures")
        .file(fields.file())
        .found(fmt::format("\"{}\"", escape_untrusted(*class_name)))
        .expected(fmt::format("a causal language model of type {}", supported_types()))
        .hint(nearest_hint(*class_name));
  }
  if (type && class_name && by_type != by_class) {
    throw Error(ErrorRole::kModel, "E-CFG-MODEL", "model_type")
        .file(fields.file())
        .found(fmt::format("\"{}\" with architectures \"{}\"", escape_untrusted(*type),
                           escape_untrusted(*class_name)))
        .expected("both to name one family");
  }
  const Family& family = type ? *by_type : *by_class;
  architecture = class_name.value_or(std::string(family.architectures[0]));
  return family;
}

// The token id that the value is; throws `error`.
std::int32_t token_id(const Json& value, std::int64_t vocab_size, Error error) {
  const std::optional<std::int64_t> id = value.whole_number();
  if (id && *id >= 0 && *id < vocab_size) return static_cast<std::int32_t>(*id);
  throw error.expected(fmt::format("a token id from 0 to {} (vocab_size - 1)", vocab_size - 1));
}

std::vector<std::int32_t> eos_ids(const ConfigFields& fields, std::int64_t vocab_size) {
  constexpr std::string_view kKey = "eos_token_id";
  std::vector<std::int32_t> ids;
  const Json* value = fields.find(kKey);
  if (value == nullptr) return ids;
  const JsonArray* list = value->array();
  if (list == nullptr) return {token_id(*value, vocab_size, fields.error("E-CFG-EOS", kKey))};
  if (list->size() > kMaxEosIds) {
    throw fields.error("E-CFG-LIMIT", kKey).expected(fmt::format("at most {} ids", kMaxEosIds));
  }
  for (std::size_t index = 0; index < list->size(); ++index) {
    const Json& id = (*list)[index];
    ids.push_back(token_id(id, vocab_size, fields.element_error("E-CFG-EOS", kKey, index, id)));
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

void read_token_ids(const ConfigFields& fields, const Json* generation_config, ModelConfig& config,
                    Notes& notes) {
  config.eos_ids = eos_ids(fields, config.vocab_size);
  // What ends a text is a generation matter: the file made for it wins, as in transformers.
  if (generation_config != nullptr) {
    const std::string file = std::string(fields.file()).ends_with("config.json")
                                 ? "generation_config.json"
                                 : std::string(fields.file());
    if (!generation_config->is_object()) {
      throw Error(ErrorRole::kModel, "E-CFG-TYPE", "top level")
          .file(file)
          .found(generation_config->describe())
          .expected("an object");
    }
    const ConfigFields generation(*generation_config, file, config.model_type);
    std::vector<std::int32_t> ids = eos_ids(generation, config.vocab_size);
    if (!ids.empty()) config.eos_ids = std::move(ids);
  }
  if (config.eos_ids.empty()) {
    notes.push_back("config: no eos_token_id, so texts end by length or stop strings only");
  }
  if (const Json* bos = fields.find("bos_token_id")) {
    config.bos_id = token_id(*bos, config.vocab_size, fields.error("E-CFG-EOS", "bos_token_id"));
  }
}

void read_declared_dtype(const ConfigFields& fields, ModelConfig& config, Notes& notes) {
  for (const std::string_view key : {"torch_dtype", "dtype"}) {
    const std::optional<std::string> name = fields.optional_string(key);
    if (!name) continue;
    if (*name == "float32" || *name == "torch.float32") config.declared_dtype = DType::kF32;
    if (*name == "float16" || *name == "torch.float16") config.declared_dtype = DType::kF16;
    if (*name == "bfloat16" || *name == "torch.bfloat16") config.declared_dtype = DType::kBF16;
    if (!config.declared_dtype) {
      notes.push_back(fmt::format("config: {} \"{}\" is not used: the weight files decide", key,
                                  escape_untrusted(*name)));
    }
    return;
  }
}

void note_ignored_code(const ConfigFields& fields, Notes& notes) {
  for (const std::string_view key :
       {"auto_map", "trust_remote_code", "_attn_implementation_internal", "custom_pipelines"}) {
    if (!fields.has(key)) continue;
    notes.push_back(
        fmt::format("config: {} is ignored: no code from a model directory is ever run", key));
  }
}

}  // namespace

std::int64_t ModelConfig::plain_ffn() const {
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    if (!has_experts(layer)) return ffn_size;
  }
  return 0;
}

void set_embedding_scale(ModelConfig& config, DType embedding_dtype) {
  if (!config.embedding.scaled) return;
  const auto exact = static_cast<float>(std::sqrt(static_cast<double>(config.hidden_size)));
  config.embedding.scale = exact;
  if (embedding_dtype == DType::kF16) config.embedding.scale = f16_to_f32(f32_to_f16(exact));
  if (embedding_dtype == DType::kBF16) config.embedding.scale = bf16_to_f32(f32_to_bf16(exact));
}

ModelConfig parse_model_config(const Json& config, const Json* generation_config,
                               std::string_view file, Notes& notes) {
  if (!config.is_object()) {
    throw Error(ErrorRole::kModel, "E-CFG-TYPE", "top level")
        .file(file)
        .found(config.describe())
        .expected("an object");
  }
  ModelConfig result;
  // A model for images or sound holds its language model's config whole.
  const ConfigFields whole(config, file, "any");
  const bool wrapped = whole.optional_object("text_config").has_value();
  const Json& text = wrapped ? *whole.find("text_config") : config;
  const std::string_view prefix = wrapped ? "text_config" : "";
  const Family& family = find_family(ConfigFields(text, file, "any", prefix), result.architecture);
  const ConfigFields fields(text, file, family.model_type, prefix);
  result.model_type = family.model_type;
  refuse_quantized(whole, family);
  refuse_quantized(fields, family);
  refuse_unsupported_features(fields, family);
  if (wrapped) refuse_both_ways(whole, fields);
  family.read(fields, result, notes);
  if (wrapped) {
    read_outer_tie(whole, fields, result);
    notes.push_back("config: only the language model of this checkpoint is read");
  }
  const auto where_given = [&](std::string_view key) -> const ConfigFields& {
    return fields.has(key) ? fields : whole;
  };
  read_token_ids(where_given("eos_token_id"), generation_config, result, notes);
  read_declared_dtype(where_given(fields.has("dtype") ? "dtype" : "torch_dtype"), result, notes);
  set_embedding_scale(result, result.declared_dtype.value_or(DType::kF32));
  note_ignored_code(whole, notes);
  return result;
}

}  // namespace triphase
