#include "models/config/tensor_manifest.h"

#include <fmt/format.h>

#include <array>

#include "base/checked_math.h"
#include "base/error.h"

namespace triphase {
namespace {

constexpr std::array<std::string_view, 2> kLlamaPrefixes{"model.", ""};
constexpr std::array<std::string_view, 3> kOptPrefixes{"model.decoder.", "decoder.", ""};
constexpr std::array<std::string_view, 2> kGptNeoxPrefixes{"gpt_neox.", ""};

// Names of one family. `{}`-free: layer tensors get "layers.N." in front.
struct Names {
  std::string_view embedding = "embed_tokens";
  std::string_view final_norm = "norm";
  std::string_view attention_norm = "input_layernorm";
  std::string_view mlp_norm = "post_attention_layernorm";
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
  std::string_view ffn_field = "intermediate_size";
  std::string_view heads_field = "num_attention_heads * head_dim";
  std::string_view kv_heads_field = "num_key_value_heads * head_dim";
};

constexpr Names kLlamaNames{};
constexpr Names kPhi3Names{
    .q = "self_attn.qkv_proj", .k = "", .gate = "", .up = "mlp.gate_up_proj"};
constexpr Names kGlmNames{.attention_output_norm = "post_self_attn_layernorm",
                          .mlp_output_norm = "post_mlp_layernorm",
                          .gate = "",
                          .up = "mlp.gate_up_proj"};
constexpr Names kOptNames{.final_norm = "final_layer_norm",
                          .attention_norm = "self_attn_layer_norm",
                          .mlp_norm = "final_layer_norm",
                          .attention_out = "self_attn.out_proj",
                          .up = "fc1",
                          .down = "fc2",
                          .ffn_field = "ffn_dim",
                          .heads_field = "hidden_size",
                          .kv_heads_field = "hidden_size"};
constexpr Names kGptNeoxNames{.embedding = "embed_in",
                              .final_norm = "final_layer_norm",
                              .q = "attention.query_key_value",
                              .k = "",
                              .attention_out = "attention.dense",
                              .up = "mlp.dense_h_to_4h",
                              .down = "mlp.dense_4h_to_h",
                              .heads_field = "hidden_size",
                              .kv_heads_field = "hidden_size"};

const Names& names_of(TensorNaming naming) {
  switch (naming) {
    case TensorNaming::kLlama:
      return kLlamaNames;
    case TensorNaming::kPhi3:
      return kPhi3Names;
    case TensorNaming::kGlm:
      return kGlmNames;
    case TensorNaming::kOpt:
      return kOptNames;
    case TensorNaming::kGptNeox:
      return kGptNeoxNames;
  }
  return kLlamaNames;
}

class ManifestBuilder {
 public:
  explicit ManifestBuilder(const ModelConfig& config)
      : config_(config), names_(names_of(config.naming)) {}

  std::vector<WeightEntry> build() {
    const std::int64_t hidden = config_.hidden_size;
    matrix(WeightSlot::kEmbedding, -1, config_.embed_dim, embed_field(),
           {part(fmt::format("{}.weight", names_.embedding), config_.vocab_size, "vocab_size")});
    if (!config_.rope) {
      matrix(
          WeightSlot::kPositions, -1, hidden, "hidden_size",
          {part("embed_positions.weight", config_.max_positions + config_.embedding.position_offset,
                "max_position_embeddings + 2")});
    }
    if (config_.embed_dim != hidden) {
      matrix(WeightSlot::kProjectIn, -1, config_.embed_dim, embed_field(),
             {part("project_in.weight", hidden, "hidden_size")});
    }
    for (std::int64_t layer = 0; layer < config_.layers; ++layer) add_layer(layer);
    if (config_.norms.final_norm) {
      const std::size_t first = entries_.size();
      norm(WeightSlot::kFinalNorm, WeightSlot::kFinalNormBias, -1, names_.final_norm);
      // Logits are linear in what the norm gives.
      for (std::size_t i = first; i < entries_.size(); ++i) {
        entries_[i].factor = static_cast<float>(1.0 / config_.logit_divisor);
      }
    }
    if (config_.embed_dim != hidden) {
      matrix(WeightSlot::kProjectOut, -1, hidden, "hidden_size",
             {part("project_out.weight", config_.embed_dim, embed_field())});
    }
    if (!config_.embedding.tied) add_head();
    return std::move(entries_);
  }

 private:
  void add_layer(std::int64_t layer) {
    const auto in_layer = [&](std::string_view name, std::string_view kind) {
      return fmt::format("layers.{}.{}.{}", layer, name, kind);
    };
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t ffn = config_.ffn_size;
    const auto qkv = [&](std::string_view kind) {
      if (names_.k.empty()) {
        const bool neox = config_.naming == TensorNaming::kGptNeox;
        TensorPart all = part(in_layer(names_.q, kind), config_.q_width() + 2 * config_.kv_width(),
                              neox ? "3 * hidden_size" : "heads and KV heads * head_dim");
        if (neox) all.order = RowOrder::kInterleavedQkv;
        return std::vector{std::move(all)};
      }
      std::vector parts{part(in_layer(names_.q, kind), config_.q_width(), names_.heads_field),
                        part(in_layer(names_.k, kind), config_.kv_width(), names_.kv_heads_field),
                        part(in_layer(names_.v, kind), config_.kv_width(), names_.kv_heads_field)};
      if (config_.rope && config_.rope->neighbours) {
        parts[0].order = parts[1].order = RowOrder::kRotaryNeighbours;
      }
      return parts;
    };
    const auto up = [&](std::string_view kind) {
      if (config_.mlp.gated && names_.gate.empty()) {
        return std::vector{part(in_layer(names_.up, kind), 2 * ffn, "2 * intermediate_size")};
      }
      std::vector<TensorPart> parts;
      if (config_.mlp.gated) parts.push_back(part(in_layer(names_.gate, kind), ffn, ffn_field()));
      parts.push_back(part(in_layer(names_.up, kind), ffn, ffn_field()));
      return parts;
    };

    const bool reads_norm = config_.norms.before || config_.norms.after_sum();
    if (reads_norm) {
      norm(WeightSlot::kAttentionNorm, WeightSlot::kAttentionNormBias, layer,
           fmt::format("layers.{}.{}", layer, names_.attention_norm));
    }
    matrix(WeightSlot::kQkv, layer, hidden, "hidden_size", qkv("weight"));
    if (config_.qkv_bias) vector(WeightSlot::kQkvBias, layer, qkv("bias"));
    add_qk_norms(layer);
    matrix(WeightSlot::kAttentionOut, layer, config_.q_width(), names_.heads_field,
           {part(in_layer(names_.attention_out, "weight"), hidden, "hidden_size")});
    if (config_.attention_out_bias) {
      vector(WeightSlot::kAttentionOutBias, layer,
             {part(in_layer(names_.attention_out, "bias"), hidden, "hidden_size")});
    }
    if (config_.norms.output) output_norm(WeightSlot::kAttentionOutputNorm, layer);
    if (reads_norm) {
      norm(WeightSlot::kMlpNorm, WeightSlot::kMlpNormBias, layer,
           fmt::format("layers.{}.{}", layer, names_.mlp_norm));
    }
    matrix(WeightSlot::kUp, layer, hidden, "hidden_size", up("weight"));
    if (config_.mlp.bias) vector(WeightSlot::kUpBias, layer, up("bias"));
    matrix(WeightSlot::kDown, layer, ffn, ffn_field(),
           {part(in_layer(names_.down, "weight"), hidden, "hidden_size")});
    if (config_.mlp.bias) {
      vector(WeightSlot::kDownBias, layer,
             {part(in_layer(names_.down, "bias"), hidden, "hidden_size")});
    }
    if (config_.norms.output) output_norm(WeightSlot::kMlpOutputNorm, layer);
  }

  void output_norm(WeightSlot slot, std::int64_t layer) {
    const std::string_view name =
        slot == WeightSlot::kMlpOutputNorm ? names_.mlp_output_norm : names_.attention_output_norm;
    vector(slot, layer,
           {part(fmt::format("layers.{}.{}.weight", layer, name), config_.hidden_size,
                 "hidden_size")});
  }

  void add_qk_norms(std::int64_t layer) {
    if (config_.norms.qk == QkNorm::kNone) return;
    const bool whole = config_.norms.qk == QkNorm::kWidth;
    const auto add = [&](WeightSlot slot, std::string_view name, std::int64_t width,
                         std::string_view field) {
      vector(slot, layer,
             {part(fmt::format("layers.{}.{}.weight", layer, name),
                   whole ? width : config_.head_dim, whole ? field : "head_dim")});
    };
    add(WeightSlot::kQueryNorm, names_.query_norm, config_.q_width(), names_.heads_field);
    add(WeightSlot::kKeyNorm, names_.key_norm, config_.kv_width(), names_.kv_heads_field);
  }

  void add_head() {
    TensorPart head = part("lm_head.weight", config_.vocab_size, "vocab_size");
    head.prefixed = false;
    if (config_.naming == TensorNaming::kGptNeox) {
      head.name = "embed_out.weight";  // transformers 5 may write lm_head
      head.other_name = "lm_head.weight";
    }
    matrix(WeightSlot::kLmHead, -1, config_.embed_dim, embed_field(), {std::move(head)});
  }

  void norm(WeightSlot weight, WeightSlot bias, std::int64_t layer, std::string_view name) {
    const std::int64_t hidden = config_.hidden_size;
    std::vector<TensorPart> parts;
    if (config_.norms.weights) {
      parts.push_back(part(fmt::format("{}.weight", name), hidden, "hidden_size"));
    }
    vector(weight, layer, std::move(parts), hidden);
    if (config_.norms.bias) {
      vector(bias, layer, {part(fmt::format("{}.bias", name), hidden, "hidden_size")});
    }
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

  [[nodiscard]] std::string_view ffn_field() const { return names_.ffn_field; }
  [[nodiscard]] std::string_view embed_field() const {
    return config_.embed_dim == config_.hidden_size ? "hidden_size" : "word_embed_proj_dim";
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
  switch (naming) {
    case TensorNaming::kLlama:
    case TensorNaming::kPhi3:
    case TensorNaming::kGlm:
      return kLlamaPrefixes;
    case TensorNaming::kOpt:
      return kOptPrefixes;
    case TensorNaming::kGptNeox:
      return kGptNeoxPrefixes;
  }
  return kLlamaPrefixes;
}

std::string_view embedding_tensor(TensorNaming naming) {
  return naming == TensorNaming::kGptNeox ? "embed_in.weight" : "embed_tokens.weight";
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
        !checked_add(total, padded / kWeightAlignment * kWeightAlignment, total)) {
      throw Error(ErrorRole::kModel, "E-CFG-LIMIT", "weights")
          .found("more than 2^64 bytes")
          .expected("a model that fits 64-bit sizes");
    }
  }
  return total;
}

}  // namespace triphase
