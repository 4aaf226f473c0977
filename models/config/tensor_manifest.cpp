#include "models/config/tensor_manifest.h"

#include <fmt/format.h>

#include <array>

#include "base/checked_math.h"
#include "base/error.h"

namespace triphase {
namespace {

// Language models inside others come with further prefixes.
constexpr std::array<std::string_view, 5> kLlamaPrefixes{
    "model.", "", "model.language_model.", "language_model.model.", "model.text_model."};
constexpr std::array<std::string_view, 3> kOptPrefixes{"model.decoder.", "decoder.", ""};
constexpr std::array<std::string_view, 2> kGptNeoxPrefixes{"gpt_neox.", ""};
constexpr std::array<std::string_view, 2> kTransformerPrefixes{"transformer.", ""};

// What config.json calls the sizes that tensors must have.
struct SizeFields {
  std::string_view hidden = "hidden_size";
  std::string_view positions = "max_position_embeddings + 2";
  std::string_view ffn = "intermediate_size";
  std::string_view experts = "num_experts";
  std::string_view expert_ffn = "moe_intermediate_size";
  std::string_view heads = "num_attention_heads * head_dim";
  std::string_view kv_heads = "num_key_value_heads * head_dim";
  std::string_view all_heads = "3 * hidden_size";
};

// Names of one family. `{}`-free: layer tensors get "layers.N." in front.
struct Names {
  std::span<const std::string_view> prefixes = kLlamaPrefixes;
  std::string_view layers = "layers";
  std::string_view embedding = "embed_tokens";
  std::string_view positions = "embed_positions";
  std::string_view final_norm = "norm";
  std::string_view attention_norm = "input_layernorm";
  std::string_view mlp_norm = "post_attention_layernorm";
  std::string_view other_attention_norm{};  // second spellings
  std::string_view other_mlp_norm{};
  std::string_view q = "self_attn.q_proj";
  std::string_view k = "self_attn.k_proj";  // empty: q holds all three
  std::string_view v = "self_attn.v_proj";
  std::string_view query_norm = "self_attn.q_norm";
  std::string_view key_norm = "self_attn.k_norm";
  std::string_view attention_out = "self_attn.o_proj";
  std::string_view attention_output_norm = "post_attention_layernorm";
  std::string_view mlp_output_norm = "post_feedforward_layernorm";
  std::string_view gate = "mlp.gate_proj";  // empty: up holds both
  std::string_view up = "mlp.up_proj";
  std::string_view down = "mlp.down_proj";
  std::string_view router = "mlp.gate";
  std::string_view experts = "mlp.experts";  // in front of an expert's number
  std::string_view expert_gate = "gate_proj";
  std::string_view expert_up = "up_proj";
  std::string_view expert_down = "down_proj";
  std::string_view stacked_gate_up{};  // of all experts of a layer in one tensor; empty: one each
  std::string_view stacked_down{};
  std::string_view head = "lm_head.weight";
  std::string_view other_head = "language_model.lm_head.weight";
  RowOrder qkv_order = RowOrder::kPlain;  // of fused projections
  bool transposed = false;                // matrices of layers
  SizeFields fields;
};

constexpr Names kLlamaNames{};
constexpr Names kPhi3Names{
    .q = "self_attn.qkv_proj", .k = "", .gate = "", .up = "mlp.gate_up_proj"};
constexpr Names kGlmNames{.attention_output_norm = "post_self_attn_layernorm",
                          .mlp_output_norm = "post_mlp_layernorm",
                          .gate = "",
                          .up = "mlp.gate_up_proj"};
constexpr Names kStarcoder2Names{.up = "mlp.c_fc", .down = "mlp.c_proj"};
constexpr Names kFalconNames{.prefixes = kTransformerPrefixes,
                             .layers = "h",
                             .embedding = "word_embeddings",
                             .final_norm = "ln_f",
                             .other_attention_norm = "ln_attn",
                             .other_mlp_norm = "ln_mlp",
                             .q = "self_attention.query_key_value",
                             .k = "",
                             .attention_out = "self_attention.dense",
                             .up = "mlp.dense_h_to_4h",
                             .down = "mlp.dense_4h_to_h",
                             .qkv_order = RowOrder::kInterleavedQkv,
                             .fields = {.ffn = "ffn_hidden_size", .heads = "hidden_size"}};
constexpr Names kGpt2Names{.prefixes = kTransformerPrefixes,
                           .layers = "h",
                           .embedding = "wte",
                           .positions = "wpe",
                           .final_norm = "ln_f",
                           .attention_norm = "ln_1",
                           .mlp_norm = "ln_2",
                           .q = "attn.c_attn",
                           .k = "",
                           .attention_out = "attn.c_proj",
                           .up = "mlp.c_fc",
                           .down = "mlp.c_proj",
                           .transposed = true,
                           .fields = {.hidden = "n_embd",
                                      .positions = "n_positions",
                                      .ffn = "n_inner",
                                      .heads = "n_embd",
                                      .all_heads = "3 * n_embd"}};
constexpr Names kGemma2Names{.mlp_norm = "pre_feedforward_layernorm"};
constexpr Names kMixtralNames{
    .router = "block_sparse_moe.gate",
    .experts = "block_sparse_moe.experts",
    .expert_gate = "w1",
    .expert_up = "w3",
    .expert_down = "w2",
    .fields = {.experts = "num_local_experts", .expert_ffn = "intermediate_size"}};
constexpr Names kGptOssNames{
    .router = "mlp.router",
    .stacked_gate_up = "mlp.experts.gate_up_proj",
    .stacked_down = "mlp.experts.down_proj",
    .fields = {.experts = "num_local_experts", .expert_ffn = "intermediate_size"}};
constexpr Names kOptNames{
    .prefixes = kOptPrefixes,
    .final_norm = "final_layer_norm",
    .attention_norm = "self_attn_layer_norm",
    .mlp_norm = "final_layer_norm",
    .attention_out = "self_attn.out_proj",
    .up = "fc1",
    .down = "fc2",
    .fields = {.ffn = "ffn_dim", .heads = "hidden_size", .kv_heads = "hidden_size"}};
constexpr Names kGptNeoxNames{.prefixes = kGptNeoxPrefixes,
                              .embedding = "embed_in",
                              .final_norm = "final_layer_norm",
                              .q = "attention.query_key_value",
                              .k = "",
                              .attention_out = "attention.dense",
                              .up = "mlp.dense_h_to_4h",
                              .down = "mlp.dense_4h_to_h",
                              .head = "embed_out.weight",  // transformers 5 may write lm_head
                              .other_head = "lm_head.weight",
                              .qkv_order = RowOrder::kInterleavedQkv,
                              .fields = {.heads = "hidden_size", .kv_heads = "hidden_size"}};

// In the order of TensorNaming.
constexpr std::array<const Names*, 11> kNames{
    &kLlamaNames,  &kOptNames,  &kGptNeoxNames, &kPhi3Names,    &kGlmNames,   &kStarcoder2Names,
    &kFalconNames, &kGpt2Names, &kGemma2Names,  &kMixtralNames, &kGptOssNames};

const Names& names_of(TensorNaming naming) { return *kNames[static_cast<std::size_t>(naming)]; }

class ManifestBuilder {
 public:
  explicit ManifestBuilder(const ModelConfig& config)
      : config_(config), names_(names_of(config.naming)) {}

  std::vector<WeightEntry> build() {
    const std::int64_t hidden = config_.hidden_size;
    matrix(WeightSlot::kEmbedding, -1, config_.embed_dim, embed_field(),
           {part(fmt::format("{}.weight", names_.embedding), config_.vocab_size, "vocab_size")});
    if (!config_.rope) {
      matrix(WeightSlot::kPositions, -1, hidden, hidden_field(),
             {part(fmt::format("{}.weight", names_.positions),
                   config_.max_positions + config_.embedding.position_offset,
                   names_.fields.positions)});
    }
    if (config_.embed_dim != hidden) {
      matrix(WeightSlot::kProjectIn, -1, config_.embed_dim, embed_field(),
             {part("project_in.weight", hidden, hidden_field())});
    }
    for (std::int64_t layer = 0; layer < config_.layers; ++layer) add_layer(layer);
    if (config_.norms.final_norm) {
      const std::size_t first = entries_.size();
      norm(WeightSlot::kFinalNorm, WeightSlot::kFinalNormBias, -1, std::string(names_.final_norm));
      // Logits are linear in what the norm gives.
      for (std::size_t i = first; i < entries_.size(); ++i) {
        entries_[i].factor = static_cast<float>(1.0 / config_.logits.divisor);
      }
    }
    if (config_.embed_dim != hidden) {
      matrix(WeightSlot::kProjectOut, -1, hidden, hidden_field(),
             {part("project_out.weight", config_.embed_dim, embed_field())});
    }
    if (!config_.embedding.tied) add_head();
    return std::move(entries_);
  }

 private:
  [[nodiscard]] std::string in_layer(std::int64_t layer, std::string_view name) const {
    return name.empty() ? std::string() : fmt::format("{}.{}.{}", names_.layers, layer, name);
  }
  [[nodiscard]] std::string in_layer(std::int64_t layer, std::string_view name,
                                     std::string_view kind) const {
    return fmt::format("{}.{}", in_layer(layer, name), kind);
  }

  void add_layer(std::int64_t layer) {
    const std::size_t first = entries_.size();
    add_attention(layer);
    add_mlp(layer);
    for (std::size_t i = first; i < entries_.size(); ++i) {
      if (entries_[i].vector) continue;
      for (TensorPart& each : entries_[i].parts) each.transposed |= names_.transposed;
    }
  }

  std::vector<TensorPart> qkv_parts(std::int64_t layer, std::string_view kind) const {
    const auto named = [&](std::string_view name) { return in_layer(layer, name, kind); };
    if (names_.k.empty()) {
      TensorPart all = part(named(names_.q), config_.q_width() + 2 * config_.kv_width(),
                            config_.kv_heads == config_.heads ? names_.fields.all_heads
                                                              : "(heads + 2 KV heads) * head_dim");
      all.order = names_.qkv_order;
      return {std::move(all)};
    }
    std::vector parts{part(named(names_.q), config_.q_width(), names_.fields.heads),
                      part(named(names_.k), config_.kv_width(), names_.fields.kv_heads),
                      part(named(names_.v), config_.kv_width(), names_.fields.kv_heads)};
    if (config_.rope && config_.rope->neighbours) {
      parts[0].order = parts[1].order = RowOrder::kRotaryNeighbours;
    }
    return parts;
  }

  void add_attention(std::int64_t layer) {
    const std::int64_t hidden = config_.hidden_size;
    if (config_.norms.before || config_.norms.after_sum()) {
      norm(WeightSlot::kAttentionNorm, WeightSlot::kAttentionNormBias, layer,
           in_layer(layer, names_.attention_norm), in_layer(layer, names_.other_attention_norm));
    }
    matrix(WeightSlot::kQkv, layer, hidden, hidden_field(), qkv_parts(layer, "weight"));
    if (config_.attention.qkv_bias) vector(WeightSlot::kQkvBias, layer, qkv_parts(layer, "bias"));
    add_qk_norms(layer);
    if (config_.attention.sinks) {
      vector(WeightSlot::kSinks, layer,
             {part(in_layer(layer, "self_attn.sinks"), config_.heads, "num_attention_heads")});
    }
    matrix(WeightSlot::kAttentionOut, layer, config_.q_width(), names_.fields.heads,
           {part(in_layer(layer, names_.attention_out, "weight"), hidden, hidden_field())});
    if (config_.attention.out_bias) {
      vector(WeightSlot::kAttentionOutBias, layer,
             {part(in_layer(layer, names_.attention_out, "bias"), hidden, hidden_field())});
    }
    output_norm(WeightSlot::kAttentionOutputNorm, layer, names_.attention_output_norm);
  }

  void add_mlp(std::int64_t layer) {
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t ffn = config_.ffn_size;
    const auto up = [&](std::string_view kind) {
      if (config_.mlp.gated && names_.gate.empty()) {
        return std::vector{
            part(in_layer(layer, names_.up, kind), 2 * ffn, "2 * intermediate_size")};
      }
      std::vector<TensorPart> parts;
      if (config_.mlp.gated) {
        parts.push_back(part(in_layer(layer, names_.gate, kind), ffn, ffn_field()));
      }
      parts.push_back(part(in_layer(layer, names_.up, kind), ffn, ffn_field()));
      return parts;
    };
    if (!config_.norms.shared && (config_.norms.before || config_.norms.after_sum())) {
      norm(WeightSlot::kMlpNorm, WeightSlot::kMlpNormBias, layer, in_layer(layer, names_.mlp_norm),
           in_layer(layer, names_.other_mlp_norm));
    }
    if (config_.has_experts(layer)) {
      add_experts(layer);
      output_norm(WeightSlot::kMlpOutputNorm, layer, names_.mlp_output_norm);
      return;
    }
    matrix(WeightSlot::kUp, layer, hidden, hidden_field(), up("weight"));
    if (config_.mlp.bias) vector(WeightSlot::kUpBias, layer, up("bias"));
    matrix(WeightSlot::kDown, layer, ffn, ffn_field(),
           {part(in_layer(layer, names_.down, "weight"), hidden, hidden_field())});
    if (config_.mlp.bias) {
      vector(WeightSlot::kDownBias, layer,
             {part(in_layer(layer, names_.down, "bias"), hidden, hidden_field())});
    }
    output_norm(WeightSlot::kMlpOutputNorm, layer, names_.mlp_output_norm);
  }

  void add_experts(std::int64_t layer) {
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t ffn = config_.experts.ffn_size;
    const auto router = [&](std::string_view kind) {
      return std::vector{
          part(in_layer(layer, names_.router, kind), config_.experts.count, names_.fields.experts)};
    };
    matrix(WeightSlot::kRouter, layer, hidden, hidden_field(), router("weight"));
    if (config_.experts.bias) vector(WeightSlot::kRouterBias, layer, router("bias"));
    if (!names_.stacked_gate_up.empty()) {
      add_stacked_experts(layer);
      return;
    }
    const auto named = [&](std::int64_t expert, std::string_view name) {
      return in_layer(layer, fmt::format("{}.{}.{}", names_.experts, expert, name), "weight");
    };
    std::vector<TensorPart> up;
    std::vector<TensorPart> down;
    for (std::int64_t expert = 0; expert < config_.experts.count; ++expert) {
      if (config_.mlp.gated) {
        up.push_back(part(named(expert, names_.expert_gate), ffn, names_.fields.expert_ffn));
      }
      up.push_back(part(named(expert, names_.expert_up), ffn, names_.fields.expert_ffn));
      down.push_back(part(named(expert, names_.expert_down), hidden, hidden_field()));
    }
    matrix(WeightSlot::kUp, layer, hidden, hidden_field(), std::move(up));
    matrix(WeightSlot::kDown, layer, ffn, names_.fields.expert_ffn, std::move(down));
  }

  void add_stacked_experts(std::int64_t layer) {
    const std::int64_t count = config_.experts.count;
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t ffn = config_.experts.ffn_size;
    const auto stacked = [&](std::string_view name, std::int64_t rows, std::string_view rows_from) {
      TensorPart all = part(in_layer(layer, name), count * rows, rows_from);
      all.stacked = count;
      all.stacked_from = names_.fields.experts;
      all.transposed = all.may_be_mxfp4 = true;
      return all;
    };
    TensorPart up = stacked(names_.stacked_gate_up, 2 * ffn, "2 * intermediate_size");
    up.order = RowOrder::kInterleavedGateUp;
    const TensorPart down = stacked(names_.stacked_down, hidden, hidden_field());
    const auto bias = [](TensorPart of) {
      of.name += "_bias";
      of.transposed = of.may_be_mxfp4 = false;
      return std::vector{std::move(of)};
    };
    matrix(WeightSlot::kUp, layer, hidden, hidden_field(), {up});
    if (config_.experts.bias) vector(WeightSlot::kUpBias, layer, bias(up));
    matrix(WeightSlot::kDown, layer, ffn, names_.fields.expert_ffn, {down});
    if (config_.experts.bias) vector(WeightSlot::kDownBias, layer, bias(down));
  }

  void output_norm(WeightSlot slot, std::int64_t layer, std::string_view name) {
    if (!config_.norms.output) return;
    vector(slot, layer,
           {part(in_layer(layer, name, "weight"), config_.hidden_size, hidden_field())});
  }

  void add_qk_norms(std::int64_t layer) {
    if (config_.norms.qk == QkNorm::kNone) return;
    const bool whole = config_.norms.qk == QkNorm::kWidth;
    const auto add = [&](WeightSlot slot, std::string_view name, std::int64_t width,
                         std::string_view field) {
      vector(slot, layer,
             {part(in_layer(layer, name, "weight"), whole ? width : config_.head_dim,
                   whole ? field : "head_dim")});
    };
    add(WeightSlot::kQueryNorm, names_.query_norm, config_.q_width(), names_.fields.heads);
    add(WeightSlot::kKeyNorm, names_.key_norm, config_.kv_width(), names_.fields.kv_heads);
  }

  void add_head() {
    TensorPart head = part(std::string(names_.head), config_.vocab_size, "vocab_size");
    head.prefixed = false;
    head.other_name = names_.other_head;
    matrix(WeightSlot::kLmHead, -1, config_.embed_dim, embed_field(), {std::move(head)});
  }

  void norm(WeightSlot weight, WeightSlot bias, std::int64_t layer, const std::string& name,
            const std::string& other = {}) {
    const std::int64_t hidden = config_.hidden_size;
    const auto of = [&](std::string_view kind) {
      TensorPart result = part(fmt::format("{}.{}", name, kind), hidden, hidden_field());
      if (!other.empty()) result.other_name = fmt::format("{}.{}", other, kind);
      return std::vector{std::move(result)};
    };
    vector(weight, layer, config_.norms.weights ? of("weight") : std::vector<TensorPart>{}, hidden);
    if (config_.norms.bias) vector(bias, layer, of("bias"));
  }

  void matrix(WeightSlot slot, std::int64_t layer, std::int64_t cols, std::string_view cols_from,
              std::vector<TensorPart> parts) {
    WeightEntry entry{.slot = slot, .layer = layer, .cols = cols, .parts = std::move(parts)};
    for (TensorPart& each : entry.parts) {
      each.cols_from = cols_from;
      each.first_row = entry.rows;
      entry.rows += each.rows;
    }
    entries_.push_back(std::move(entry));
  }

  void vector(WeightSlot slot, std::int64_t layer, std::vector<TensorPart> parts,
              std::int64_t rows_without_parts = 0) {
    matrix(slot, layer, 1, {}, std::move(parts));
    entries_.back().vector = true;
    if (entries_.back().parts.empty()) entries_.back().rows = rows_without_parts;
  }

  static TensorPart part(std::string name, std::int64_t rows, std::string_view rows_from) {
    TensorPart result;
    result.name = std::move(name);
    result.rows = rows;
    result.rows_from = rows_from;
    return result;
  }

  [[nodiscard]] std::string_view hidden_field() const { return names_.fields.hidden; }
  [[nodiscard]] std::string_view ffn_field() const { return names_.fields.ffn; }
  [[nodiscard]] std::string_view embed_field() const {
    return config_.embed_dim == config_.hidden_size ? hidden_field() : "word_embed_proj_dim";
  }

  const ModelConfig& config_;
  const Names& names_;
  std::vector<WeightEntry> entries_;
};

}  // namespace

std::vector<WeightEntry> weight_manifest(const ModelConfig& config) {
  return ManifestBuilder(config).build();
}

std::span<const std::string_view> tensor_prefixes(TensorNaming naming) {
  return names_of(naming).prefixes;
}

std::string embedding_tensor(TensorNaming naming) {
  return fmt::format("{}.weight", names_of(naming).embedding);
}

bool harmless_extra_tensor(std::string_view name) {
  for (const std::string_view ending :
       {"rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias", "decoder.version",
        "embed_positions._float_tensor", ".attn.bias", ".attn.masked_bias"}) {
    if (name.ends_with(ending)) return true;
  }
  return false;
}

bool quantized_tensor(std::string_view name) {
  for (const std::string_view ending :
       {".qweight", ".qzeros", ".scales", ".g_idx", ".weight_packed", ".weight_scale",
        ".weight_scale_inv", ".weight_zero_point", ".weight.absmax", ".weight.quant_map", ".SCB"}) {
    if (name.ends_with(ending)) return true;
  }
  return name.find(".weight.quant_state.") != std::string_view::npos;
}

std::uint64_t parameter_count(const ModelConfig& config) {
  std::uint64_t total = 0;
  for (const WeightEntry& entry : weight_manifest(config)) {
    for (const TensorPart& part : entry.parts) {
      total += static_cast<std::uint64_t>(part.rows) * static_cast<std::uint64_t>(entry.cols);
    }
  }
  return total;
}

std::uint64_t manifest_bytes(std::span<const WeightEntry> manifest, DType dtype) {
  std::uint64_t total = 0;
  for (const WeightEntry& entry : manifest) {
    const std::uint64_t factors[] = {static_cast<std::uint64_t>(entry.rows),
                                     static_cast<std::uint64_t>(entry.cols),
                                     entry.vector ? sizeof(float) : dtype_bytes(dtype)};
    const std::optional<std::uint64_t> bytes = checked_product(factors);
    std::uint64_t padded = 0;
    if (!bytes || !checked_add(*bytes, kWeightAlignment - 1, padded) ||
        !checked_add(total, aligned_bytes(*bytes), total)) {
      throw Error(ErrorRole::kModel, "E-CFG-LIMIT", "weights")
          .found("more than 2^64 bytes")
          .expected("a model that fits 64-bit sizes");
    }
  }
  return total;
}

}  // namespace triphase
