// What families compute where config.json leaves fields out.

#include "models/config/model_config.h"
#include "tests/unit/models/config_text.h"
#include "tests/unit/models/error_matcher.h"

namespace triphase {
namespace {

std::string llama_of_type(const std::string& type) {
  return with(with(kLlamaConfig, "model_type", "\"" + type + "\""), "architectures", "null");
}

TEST(FamilyDefaults, SeedOssHasBiasesOfQueriesKeysAndValues) {
  const std::string text = llama_of_type("seed_oss");
  const ModelConfig config = parse(text);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_TRUE(config.attention.qkv_bias);
  EXPECT_FALSE(config.attention.out_bias || config.mlp.bias || config.embedding.tied);
  EXPECT_TRUE(parse(with(text, "attention_out_bias", "true")).attention.out_bias);
  EXPECT_FALSE(parse(with(text, "attention_bias", "false")).attention.qkv_bias);
}

// Its own files have qkv_bias and bias, which transformers writes by other names.
TEST(FamilyDefaults, InternLm3HasTwoNamesForItsBiases) {
  const std::string text = llama_of_type("internlm3");
  const ModelConfig config = parse(text);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(parse(with(text, "rms_norm_eps", "")).norms.eps, 1e-5);
  EXPECT_FALSE(config.attention.qkv_bias || config.attention.out_bias || config.mlp.bias);
  for (const auto& [qkv, others] :
       {std::pair{"qkv_bias", "bias"}, std::pair{"attention_bias", "mlp_bias"}}) {
    const ModelConfig of_queries = parse(with(text, qkv, "true"));
    EXPECT_TRUE(of_queries.attention.qkv_bias) << qkv;
    EXPECT_FALSE(of_queries.attention.out_bias || of_queries.mlp.bias) << qkv;
    const ModelConfig of_others = parse(with(text, others, "true"));
    EXPECT_FALSE(of_others.attention.qkv_bias) << others;
    EXPECT_TRUE(of_others.attention.out_bias && of_others.mlp.bias) << others;
  }
}

TEST(FamilyDefaults, Ernie45TiesItsHeadAndPairsNeighbours) {
  const std::string text = with(llama_of_type("ernie4_5"), "rope_theta", "");
  const ModelConfig config = parse(with(text, "rms_norm_eps", ""));
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.norms.eps, 1e-5);
  EXPECT_EQ(config.rope->theta, 500000.0);
  EXPECT_TRUE(config.rope->neighbours && config.embedding.tied);
  EXPECT_FALSE(config.attention.qkv_bias || config.attention.out_bias || config.mlp.bias);
  const ModelConfig biased = parse(with(text, "use_bias", "true"));
  EXPECT_TRUE(biased.attention.qkv_bias && biased.attention.out_bias && biased.mlp.bias);
}

TEST(FamilyDefaults, CohereScalesItsLogits) {
  const std::string text = with(llama_of_type("cohere"), "rope_theta", "");
  const ModelConfig config = parse(text);
  EXPECT_EQ(config.norms.kind, Norm::kLayerNorm);
  EXPECT_EQ(config.norms.eps, 1e-5);
  EXPECT_FALSE(config.norms.bias || config.attention.qkv_bias || config.mlp.bias);
  EXPECT_TRUE(config.parallel_residual && config.norms.shared && config.embedding.tied);
  EXPECT_EQ(config.logits.divisor, 16.0);
  EXPECT_EQ(config.rope->theta, 500000.0);
  EXPECT_TRUE(config.rope->neighbours && config.rotates(0));
  EXPECT_EQ(parse(with(text, "logit_scale", "0.5")).logits.divisor, 2.0);
  expect_error(thrown_by([&] { (void)parse(with(text, "logit_scale", "0")); }), "E-CFG-FEATURE",
               "logit_scale: 0, expected a number above 0");
  expect_error(thrown_by([&] { (void)parse(with(text, "use_qk_norm", "true")); }), "E-CFG-FEATURE",
               "use_qk_norm");
}

TEST(FamilyDefaults, Cohere2RotatesInLayersWithWindows) {
  const std::string text = with(llama_of_type("cohere2"), "num_hidden_layers", "4");
  const ModelConfig config = parse(with(text, "position_embedding_type", "\"rope_gptj\""));
  EXPECT_EQ(config.sliding_window, (std::vector<std::int64_t>{4096, 4096, 4096, 0}));
  EXPECT_EQ(config.unrotated, (std::vector<bool>{false, false, false, true}));
  const ModelConfig every_other =
      parse(with(with(text, "sliding_window", "24"), "sliding_window_pattern", "2"));
  EXPECT_EQ(every_other.sliding_window, (std::vector<std::int64_t>{24, 0, 24, 0}));
  expect_error(thrown_by([&] { (void)parse(with(text, "sliding_window", "null")); }),
               "E-CFG-FEATURE", "sliding_window: null");
  expect_error(thrown_by([&] { (void)parse(with(text, "position_embedding_type", "\"alibi\"")); }),
               "E-CFG-FEATURE", "expected rope_gptj");
}

TEST(FamilyDefaults, Exaone4RotatesInLayersWithWindowsWhereThereAreSome) {
  const std::string text = with(llama_of_type("exaone4"), "num_hidden_layers", "4");
  const ModelConfig config = parse(with(text, "rms_norm_eps", ""));
  EXPECT_EQ(config.norms.eps, 1e-5);
  EXPECT_TRUE(config.norms.output && !config.norms.before);
  EXPECT_EQ(config.norms.qk, QkNorm::kHead);
  EXPECT_EQ(config.sliding_window, (std::vector<std::int64_t>{4096, 4096, 4096, 0}));
  EXPECT_EQ(config.unrotated, (std::vector<bool>{false, false, false, true}));
  const std::string types =
      R"(["full_attention","sliding_attention","full_attention","full_attention"])";
  const std::string named =
      with(with(text, "sliding_window_pattern", "\"LLLG\""), "layer_types", types);
  EXPECT_EQ(parse(named).sliding_window, (std::vector<std::int64_t>{0, 4096, 0, 0}));
  EXPECT_FALSE(parse(named).rotates(0));
  // As in EXAONE-4.0-1.2B.
  const ModelConfig full = parse(with(text, "sliding_window", "null"));
  EXPECT_TRUE(full.sliding_window.empty() && full.rotates(0) && full.rotates(3));
  expect_error(thrown_by([&] { (void)parse(with(named, "sliding_window", "null")); }),
               "E-CFG-FEATURE", "sliding_window: null");
}

TEST(FamilyDefaults, OlmoHasNormsWithoutWeights) {
  const std::string text = llama_of_type("olmo");
  const ModelConfig config = parse(text);
  EXPECT_EQ(config.norms.kind, Norm::kLayerNorm);
  EXPECT_EQ(config.norms.eps, 1e-5);
  EXPECT_FALSE(config.norms.weights || config.norms.bias || config.attention.qkv_bias);
  EXPECT_FALSE(config.embedding.tied || config.parallel_residual);
  EXPECT_EQ(parse(with(text, "clip_qkv", "null")).model_type, "olmo");
  expect_error(thrown_by([&] { (void)parse(with(text, "clip_qkv", "8.0")); }), "E-CFG-FEATURE",
               "clip_qkv: 8.0, expected queries, keys and values without limits");
}

TEST(FamilyDefaults, AClassOfTwoFamiliesIsThatOfTheType) {
  const std::string shared = with(kLlamaConfig, "model_type", "\"internlm3\"");
  EXPECT_EQ(parse(shared).model_type, "internlm3");
  EXPECT_EQ(parse(kLlamaConfig).model_type, "llama");
  EXPECT_EQ(parse(with(kLlamaConfig, "model_type", "")).model_type, "llama");
}

}  // namespace
}  // namespace triphase
