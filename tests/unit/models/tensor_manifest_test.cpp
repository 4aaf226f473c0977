#include "models/config/tensor_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "tests/unit/models/config_text.h"
#include "tests/unit/models/error_matcher.h"

namespace triphase {
namespace {

std::vector<std::string> names(const ModelConfig& config) {
  std::vector<std::string> result;
  for (const WeightEntry& entry : weight_manifest(config)) {
    for (const TensorPart& part : entry.parts) result.push_back(part.name);
  }
  return result;
}

TEST(TensorManifest, LlamaNamesInForwardOrder) {
  EXPECT_EQ(names(parse(with(kLlamaConfig, "num_hidden_layers", "1"))),
            (std::vector<std::string>{
                "embed_tokens.weight", "layers.0.input_layernorm.weight",
                "layers.0.self_attn.q_proj.weight", "layers.0.self_attn.k_proj.weight",
                "layers.0.self_attn.v_proj.weight", "layers.0.self_attn.o_proj.weight",
                "layers.0.post_attention_layernorm.weight", "layers.0.mlp.gate_proj.weight",
                "layers.0.mlp.up_proj.weight", "layers.0.mlp.down_proj.weight", "norm.weight",
                "lm_head.weight"}));
}

TEST(TensorManifest, GptOssStacksExpertsAndHasBiasesThroughout) {
  const ModelConfig config = parse(kGptOssConfig);
  const std::vector<std::string> all = names(config);
  for (const char* name :
       {"layers.1.self_attn.sinks", "layers.0.self_attn.o_proj.bias", "layers.1.mlp.router.weight",
        "layers.1.mlp.router.bias", "layers.0.mlp.experts.gate_up_proj",
        "layers.0.mlp.experts.gate_up_proj_bias", "layers.0.mlp.experts.down_proj",
        "layers.1.mlp.experts.down_proj_bias"}) {
    EXPECT_EQ(std::ranges::count(all, name), 1) << name;
  }
  // gpt-oss-20b's sizes: 20.9e9 parameters.
  std::string released = kGptOssConfig;
  for (const auto& [key, value] :
       {std::pair("hidden_size", "2880"), std::pair("intermediate_size", "2880"),
        std::pair("num_hidden_layers", "24"), std::pair("num_attention_heads", "64"),
        std::pair("num_key_value_heads", "8"), std::pair("head_dim", "64"),
        std::pair("num_local_experts", "32"), std::pair("vocab_size", "201088"),
        std::pair("layer_types", "")}) {
    released = with(released, key, value);
  }
  EXPECT_EQ(parameter_count(parse(released)), 20914757184U);
}

TEST(TensorManifest, ExpertsLieOneAfterTheOther) {
  const ModelConfig config =
      parse(with(with(kQwen3MoeConfig, "num_experts", "4"), "mlp_only_layers", "[1]"));
  for (const WeightEntry& entry : weight_manifest(config)) {
    const bool experts = config.has_experts(std::max<std::int64_t>(entry.layer, 0));
    if (entry.slot == WeightSlot::kRouter) {
      EXPECT_EQ(entry.rows, 4);
      EXPECT_EQ(entry.parts[0].name, fmt::format("layers.{}.mlp.gate.weight", entry.layer));
      EXPECT_TRUE(experts);
    }
    if (entry.slot == WeightSlot::kUp) {
      EXPECT_EQ(entry.rows, experts ? 4 * 2 * 24 : 2 * 96);
      if (!experts) continue;
      EXPECT_EQ(entry.parts[3].name,
                fmt::format("layers.{}.mlp.experts.1.up_proj.weight", entry.layer));
      EXPECT_EQ(entry.parts[3].first_row, 3 * 24);
    }
    if (entry.slot == WeightSlot::kDown) {
      EXPECT_EQ(entry.rows, experts ? 4 * 64 : 64);
      EXPECT_EQ(entry.cols, experts ? 24 : 96);
    }
  }
  const std::vector<std::string> mixtral = names(parse(kMixtralConfig));
  for (const char* name :
       {"layers.1.block_sparse_moe.gate.weight", "layers.1.block_sparse_moe.experts.7.w1.weight",
        "layers.0.block_sparse_moe.experts.0.w2.weight",
        "layers.0.block_sparse_moe.experts.0.w3.weight"}) {
    EXPECT_EQ(std::ranges::count(mixtral, name), 1) << name;
  }
}

TEST(TensorManifest, FusedRows) {
  for (const WeightEntry& entry : weight_manifest(parse(kLlamaConfig))) {
    if (entry.slot == WeightSlot::kQkv) {
      ASSERT_EQ(entry.parts.size(), 3U);
      EXPECT_EQ(entry.rows, 64 + 32 + 32);
      EXPECT_EQ(entry.parts[1].first_row, 64);
      EXPECT_EQ(entry.parts[2].first_row, 96);
      EXPECT_EQ(entry.parts[1].rows, 32);
    }
    if (entry.slot == WeightSlot::kUp) {
      EXPECT_EQ(entry.parts[1].first_row, 96);
    }
  }
  for (const WeightEntry& entry : weight_manifest(parse(kNeoxConfig))) {
    const bool qkv = entry.slot == WeightSlot::kQkv || entry.slot == WeightSlot::kQkvBias;
    EXPECT_EQ(entry.parts[0].order, qkv ? RowOrder::kInterleavedQkv : RowOrder::kPlain);
    if (qkv) {
      EXPECT_EQ(entry.rows, 192);
    }
  }
}

TEST(TensorManifest, OptExtras) {
  const ModelConfig config = parse(
      with(with(with(kOptConfig, "do_layer_norm_before", "false"), "word_embed_proj_dim", "32"),
           "num_hidden_layers", "1"));
  const std::vector<std::string> all = names(config);
  EXPECT_EQ(all[1], "embed_positions.weight");
  EXPECT_EQ(all[2], "project_in.weight");
  EXPECT_EQ(all.back(), "project_out.weight");  // no final norm, tied head
  const std::vector<WeightEntry> manifest = weight_manifest(config);
  EXPECT_EQ(manifest[1].rows, 130);
  EXPECT_EQ(manifest[2].rows, 64);
  EXPECT_EQ(manifest[2].cols, 32);
}

TEST(TensorManifest, NormsWithoutParametersHaveNoTensors) {
  const std::vector<WeightEntry> manifest =
      weight_manifest(parse(with(kOptConfig, "layer_norm_elementwise_affine", "false")));
  int filled = 0;
  for (const WeightEntry& entry : manifest) {
    if (!entry.parts.empty()) continue;
    EXPECT_TRUE(entry.is_norm_weight());
    EXPECT_EQ(entry.rows, 64);
    ++filled;
  }
  EXPECT_EQ(filled, 5);
}

// Published parameter counts: the manifest covers the whole model.
TEST(TensorManifest, ParameterCounts) {
  EXPECT_EQ(parameter_count(*builtin_shape("llama-2-7b")), 6'738'415'616U);
  EXPECT_EQ(parameter_count(*builtin_shape("llama-3-8b")), 8'030'261'248U);
  EXPECT_EQ(parameter_count(*builtin_shape("mistral-7b")), 7'241'732'096U);
  EXPECT_EQ(parameter_count(*builtin_shape("opt-125m")), 125'239'296U);
  EXPECT_EQ(parameter_count(*builtin_shape("opt-6.7b")), 6'658'473'984U);
  EXPECT_EQ(parameter_count(*builtin_shape("pythia-6.9b")), 6'857'302'016U);
}

TEST(TensorManifest, BytesAreAlignedAndChecked) {
  std::vector<WeightEntry> manifest(2);
  manifest[0].rows = 3;
  manifest[0].cols = 5;
  manifest[1].rows = 7;
  manifest[1].vector = true;
  EXPECT_EQ(manifest_bytes(manifest, DType::kF16), 64U + 64U);
  manifest[0].rows = std::int64_t{1} << 40;
  manifest[0].cols = std::int64_t{1} << 23;
  EXPECT_EQ(manifest_bytes(manifest, DType::kInt8), (std::uint64_t{1} << 63) + 64);
  expect_error(thrown_by([&] { (void)manifest_bytes(manifest, DType::kF16); }), "E-CFG-LIMIT",
               "2^64");
  manifest[1] = manifest[0];
  EXPECT_THROW((void)manifest_bytes(manifest, DType::kInt8), Error);
}

TEST(TensorManifest, KnownExtras) {
  EXPECT_TRUE(harmless_extra_tensor("model.layers.0.self_attn.rotary_emb.inv_freq"));
  EXPECT_TRUE(harmless_extra_tensor("gpt_neox.layers.3.attention.masked_bias"));
  EXPECT_FALSE(harmless_extra_tensor("gpt_neox.layers.3.attention.dense.bias"));
  EXPECT_TRUE(quantized_tensor("model.layers.0.self_attn.q_proj.qweight"));
  EXPECT_TRUE(quantized_tensor("model.layers.0.mlp.up_proj.weight_scale"));
  EXPECT_FALSE(quantized_tensor("model.layers.0.mlp.up_proj.weight"));
}

}  // namespace
}  // namespace triphase
