#include "models/config/model_config.h"

#include <cmath>

#include "tests/unit/models/config_text.h"
#include "tests/unit/models/error_matcher.h"

namespace triphase {
namespace {

TEST(ModelConfig, Llama) {
  Notes notes;
  const ModelConfig config = parse(kLlamaConfig, &notes);
  EXPECT_EQ(config.model_type, "llama");
  EXPECT_EQ(config.naming, TensorNaming::kLlama);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.ffn_size, 96);
  EXPECT_EQ(config.norms.kind, Norm::kRmsNorm);
  EXPECT_EQ(config.norms.eps, 1e-5);
  EXPECT_TRUE(config.mlp.gated);
  EXPECT_FALSE(config.attention.qkv_bias);
  EXPECT_FALSE(config.embedding.tied);
  ASSERT_TRUE(config.rope);
  EXPECT_EQ(config.rope->rotary_dim, 16);
  EXPECT_EQ(config.eos_ids, std::vector<std::int32_t>{2});
  EXPECT_EQ(config.bos_id, 1);
  EXPECT_TRUE(config.sliding_window.empty());
  EXPECT_TRUE(notes.empty());
  EXPECT_EQ(config.kv_bytes_per_token(DType::kF16), 2U * 2 * 2 * 16 * 2);

  const ModelConfig biased =
      parse(with(with(kLlamaConfig, "attention_bias", "true"), "mlp_bias", "true"));
  EXPECT_TRUE(biased.attention.qkv_bias && biased.attention.out_bias && biased.mlp.bias);
  EXPECT_EQ(parse(with(kLlamaConfig, "num_key_value_heads", "")).kv_heads, 4);
  EXPECT_EQ(parse(with(kLlamaConfig, "num_key_value_heads", "null")).kv_heads, 4);
  EXPECT_EQ(parse(with(kLlamaConfig, "head_dim", "24")).q_width(), 96);
  EXPECT_TRUE(parse(with(kLlamaConfig, "tie_word_embeddings", "true")).embedding.tied);
}

TEST(ModelConfig, Opt) {
  const ModelConfig config = parse(kOptConfig);
  EXPECT_EQ(config.naming, TensorNaming::kOpt);
  EXPECT_FALSE(config.rope);
  EXPECT_EQ(config.embedding.position_offset, 2);
  EXPECT_EQ(config.norms.kind, Norm::kLayerNorm);
  EXPECT_TRUE(config.norms.bias && config.norms.weights && config.norms.before &&
              config.norms.final_norm);
  EXPECT_TRUE(config.embedding.tied && config.attention.qkv_bias && config.mlp.bias);
  EXPECT_EQ(config.mlp.activation, Activation::kRelu);
  EXPECT_FALSE(config.mlp.gated);

  const ModelConfig small =
      parse(with(with(kOptConfig, "do_layer_norm_before", "false"), "word_embed_proj_dim", "32"));
  EXPECT_FALSE(small.norms.before);
  EXPECT_FALSE(small.norms.final_norm);
  EXPECT_EQ(small.embed_dim, 32);
  EXPECT_FALSE(parse(with(kOptConfig, "_remove_final_layer_norm", "true")).norms.final_norm);
  EXPECT_FALSE(parse(with(kOptConfig, "enable_bias", "false")).attention.qkv_bias);
  EXPECT_FALSE(parse(with(kOptConfig, "layer_norm_elementwise_affine", "false")).norms.bias);
  EXPECT_EQ(parse(with(kOptConfig, "activation_function", "\"gelu\"")).mlp.activation,
            Activation::kGeluErf);
}

TEST(ModelConfig, GptNeox) {
  const ModelConfig config = parse(kNeoxConfig);
  EXPECT_EQ(config.naming, TensorNaming::kGptNeox);
  EXPECT_TRUE(config.parallel_residual);
  EXPECT_EQ(config.rope->rotary_dim, 4);
  EXPECT_EQ(config.mlp.activation, Activation::kGeluErf);
  EXPECT_TRUE(config.attention.qkv_bias && config.mlp.bias && config.norms.bias);
  EXPECT_FALSE(parse(with(kNeoxConfig, "use_parallel_residual", "false")).parallel_residual);
  const ModelConfig plain = parse(with(kNeoxConfig, "attention_bias", "false"));
  EXPECT_FALSE(plain.attention.qkv_bias || plain.attention.out_bias);
  EXPECT_TRUE(plain.mlp.bias);
}

TEST(ModelConfig, GemmaScalesEmbeddingsThroughTheirType) {
  const ModelConfig config = parse(kGemmaConfig);
  EXPECT_EQ(config.norms.kind, Norm::kRmsNormPlusOne);
  EXPECT_EQ(config.mlp.activation, Activation::kGeluTanh);  // although the file says gelu
  EXPECT_TRUE(config.embedding.tied);
  EXPECT_EQ(config.q_width(), 64);
  EXPECT_EQ(config.embedding.scale, std::sqrt(48.0F));
  EXPECT_EQ(parse(with(kGemmaConfig, "torch_dtype", "\"bfloat16\"")).embedding.scale, 6.9375F);
  EXPECT_EQ(parse(with(kGemmaConfig, "dtype", "\"float16\"")).embedding.scale, 6.9296875F);
  ModelConfig changed = config;
  set_embedding_scale(changed, DType::kBF16);
  EXPECT_EQ(changed.embedding.scale, 6.9375F);
  EXPECT_EQ(parse(with(kGemmaConfig, "head_dim", "")).head_dim, 256);
  EXPECT_EQ(parse(with(kGemmaConfig, "hidden_activation", "\"gelu_pytorch_tanh\"")).mlp.activation,
            Activation::kGeluTanh);
}

TEST(ModelConfig, SlidingWindows) {
  EXPECT_EQ(parse(kMistralConfig).sliding_window, (std::vector<std::int64_t>{24, 24}));
  EXPECT_EQ(parse(kMistralConfig).window(1), 24);
  EXPECT_TRUE(parse(with(kMistralConfig, "sliding_window", "null")).sliding_window.empty());
  const std::string alternating =
      with(kMistralConfig, "layer_types", R"(["full_attention","sliding_attention"])");
  EXPECT_EQ(parse(alternating).sliding_window, (std::vector<std::int64_t>{0, 24}));
  EXPECT_EQ(parse(R"({"model_type":"mistral3","text_config":)" + alternating + "}").sliding_window,
            (std::vector<std::int64_t>{24, 24}));

  EXPECT_TRUE(parse(with(kQwen2Config, "sliding_window", "24")).sliding_window.empty());
  EXPECT_TRUE(parse(kQwen2Config).attention.qkv_bias);
  EXPECT_FALSE(parse(kQwen2Config).attention.out_bias);
  const std::string used =
      with(with(kQwen2Config, "use_sliding_window", "true"), "sliding_window", "24");
  EXPECT_EQ(parse(with(used, "max_window_layers", "1")).sliding_window,
            (std::vector<std::int64_t>{0, 24, 24}));
  EXPECT_TRUE(parse(with(used, "max_window_layers", "28")).sliding_window.empty());
  EXPECT_EQ(
      parse(with(used, "layer_types", R"(["sliding_attention","full_attention","full_attention"])"))
          .sliding_window,
      (std::vector<std::int64_t>{24, 0, 0}));
}

std::string llama_of_type(const std::string& type) {
  return with(with(kLlamaConfig, "model_type", "\"" + type + "\""), "architectures", "null");
}

TEST(ModelConfig, LayersWithoutRotaryPositions) {
  const std::string smol = llama_of_type("smollm3");
  const std::string four = with(smol, "num_hidden_layers", "4");
  EXPECT_EQ(parse(four).unrotated, (std::vector<bool>{false, false, false, true}));
  EXPECT_EQ(parse(with(four, "no_rope_layer_interval", "2")).unrotated,
            (std::vector<bool>{false, true, false, true}));
  const ModelConfig chosen = parse(with(four, "no_rope_layers", "[0, 1, 1, 0]"));
  EXPECT_EQ(chosen.unrotated, (std::vector<bool>{true, false, false, true}));
  EXPECT_FALSE(chosen.rotates(0));
  EXPECT_TRUE(chosen.rotates(1));
  expect_error(thrown_by([&] { (void)parse(with(four, "no_rope_layers", "[1, 1]")); }),
               "E-CFG-TYPE", "an array of 4 numbers");
  expect_error(thrown_by([&] { (void)parse(with(four, "no_rope_layers", "[1, 1, 2, 1]")); }),
               "E-CFG-TYPE", "no_rope_layers[2]");
  expect_error(thrown_by([&] { (void)parse(with(kLlamaConfig, "no_rope_layers", "[1, 1]")); }),
               "E-CFG-FEATURE", "no_rope_layers");
}

TEST(ModelConfig, GraniteFactorsMoveToWhatTheyScale) {
  std::string text = llama_of_type("granite");
  text = with(with(text, "embedding_multiplier", "12"), "residual_multiplier", "0.5");
  text = with(with(text, "attention_multiplier", "0.125"), "logits_scaling", "8");
  const ModelConfig config = parse(with(text, "rms_norm_eps", "1e-05"));
  EXPECT_EQ(config.embedding.scale, 24.0F);
  EXPECT_DOUBLE_EQ(config.norms.eps, 4e-5);
  EXPECT_EQ(config.attention.score_scale, 0.125);
  EXPECT_EQ(config.logits.divisor, 8.0);
  expect_error(thrown_by([&] { (void)parse(with(text, "residual_multiplier", "0")); }),
               "E-CFG-FEATURE", "residual_multiplier: 0, expected a number above 0");
}

TEST(ModelConfig, WindowsWithRotaryPositionsOfTheirOwn) {
  // As transformers 4 wrote it.
  const std::string older = with(
      with(with(llama_of_type("olmo3"), "num_hidden_layers", "4"), "sliding_window", "24"),
      "rope_scaling", R"({"rope_type":"yarn","factor":8.0,"original_max_position_embeddings":64})");
  const ModelConfig config = parse(with(older, "rope_theta", "500000"));
  EXPECT_EQ(config.sliding_window, (std::vector<std::int64_t>{24, 24, 24, 0}));
  EXPECT_EQ(config.rope->scaling, RopeScaling::kYarn);
  ASSERT_TRUE(config.window_rope);
  EXPECT_EQ(config.window_rope->scaling, RopeScaling::kNone);
  EXPECT_EQ(config.window_rope->theta, 500000.0);
  EXPECT_TRUE(config.norms.output && !config.norms.before && !config.norms.after_sum());
  const std::string newer = with(
      with(older, "rope_scaling", ""), "rope_parameters",
      R"({"full_attention":{"rope_type":"default"},"sliding_attention":{"rope_type":"linear"}})");
  expect_error(thrown_by([&] { (void)parse(with(newer, "rope_theta", "")); }), "E-CFG-ROPE",
               "rope_parameters.sliding_attention.rope_type");
}

TEST(ModelConfig, Gemma3FillsInWhatReleasedFilesLeaveOut) {
  const ModelConfig config = parse(
      R"({"model_type":"gemma3","text_config":{"hidden_size":2560,"intermediate_size":10240,
          "model_type":"gemma3_text","num_hidden_layers":34,"sliding_window":1024,
          "rope_scaling":{"factor":8.0,"rope_type":"linear"}}})");
  EXPECT_EQ(config.heads, 8);
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.vocab_size, 262208);
  EXPECT_EQ(config.max_positions, 131072);  // after scaling
  EXPECT_EQ(config.rope->theta, 1e6);
  EXPECT_EQ(config.rope->factor, 8.0);
  EXPECT_EQ(config.window_rope->theta, 10000.0);
  EXPECT_EQ(config.window(4), 1024);
  EXPECT_EQ(config.window(5), 0);
  EXPECT_EQ(config.attention.score_scale, 1.0 / 16);
  EXPECT_TRUE(config.norms.before && config.norms.output && config.embedding.scaled);
}

TEST(ModelConfig, Ministral3EndsWhereQueriesWouldBeScaled) {
  const std::string text =
      with(llama_of_type("ministral3"), "rope_parameters",
           R"({"type":"yarn","rope_theta":1e6,"factor":16.0,"original_max_position_embeddings":32,
          "mscale":1.0,"mscale_all_dim":1.0,"llama_4_scaling_beta":0.1})");
  Notes notes;
  EXPECT_EQ(parse(with(text, "rope_theta", ""), &notes).max_positions, 32);
  EXPECT_NE(notes.back().find("llama_4_scaling_beta"), std::string::npos);
}

TEST(ModelConfig, Ministral3NeedsItsRopeAndHasDefaultsForTheRest) {
  const std::string rope =
      R"({"type":"yarn","rope_theta":1e6,"factor":16.0,"original_max_position_embeddings":32,
          "llama_4_scaling_beta":0.1})";
  const std::string text = with(llama_of_type("ministral3"), "rms_norm_eps", "");
  const ModelConfig config = parse(with(text, "rope_scaling", rope));  // the older key
  EXPECT_EQ(config.max_positions, 32);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.norms.eps, 1e-5);
  // Where the scaling itself begins counts.
  EXPECT_EQ(parse(with(with(text, "rope_scaling", rope), "original_max_position_embeddings", "64"))
                .max_positions,
            64);
  expect_error(thrown_by([&] { (void)parse(text); }), "E-CFG-MISSING",
               "rope_parameters: missing, expected how rotary positions are scaled");
}

// Found by fuzzing: the context was 0 tokens long.
TEST(ModelConfig, Ministral3WithoutRopeScalingSaysWhereQueriesWouldBeScaled) {
  const std::string text = with(
      with(llama_of_type("ministral3"), "rope_theta", ""), "rope_parameters",
      R"({"rope_theta":1e6,"original_max_position_embeddings":32,"llama_4_scaling_beta":0.1})");
  EXPECT_EQ(parse(text).max_positions, 32);
  expect_error(thrown_by([&] {
                 (void)parse(with(text, "rope_parameters",
                                  R"({"rope_theta":1e6,"llama_4_scaling_beta":0.1})"));
               }),
               "E-CFG-ROPE", "rope_parameters.original_max_position_embeddings: missing");
}

TEST(ModelConfig, LaterGemmasReadHiddenActivationAlone) {
  for (const char* type : {"\"gemma2\"", "\"gemma3_text\""}) {
    const std::string text =
        with(with(with(kGemmaConfig, "model_type", type), "architectures", "null"), "hidden_act",
             "\"relu\"");
    EXPECT_EQ(parse(text).mlp.activation, Activation::kGeluTanh);
    EXPECT_EQ(parse(with(text, "hidden_activation", "\"gelu\"")).mlp.activation,
              Activation::kGeluErf);
  }
}

TEST(ModelConfig, Gemma2HasSoftCaps) {
  const std::string text =
      with(with(kGemmaConfig, "model_type", "\"gemma2\""), "architectures", "null");
  EXPECT_EQ(parse(text).attention.score_cap, 50.0);
  EXPECT_EQ(parse(text).logits.cap, 30.0);
  EXPECT_EQ(parse(text).sliding_window, (std::vector<std::int64_t>{4096, 0}));
  EXPECT_EQ(parse(with(text, "attn_logit_softcapping", "null")).attention.score_cap, 0.0);
  expect_error(thrown_by([&] { (void)parse(with(text, "final_logit_softcapping", "-1")); }),
               "E-CFG-FEATURE", "final_logit_softcapping: -1");
}

TEST(ModelConfig, ExpertsOfMixtral) {
  const ModelConfig config = parse(kMixtralConfig);
  EXPECT_EQ(config.experts.count, 8);
  EXPECT_EQ(config.experts.per_token, 2);
  EXPECT_EQ(config.experts.ffn_size, 96);
  EXPECT_TRUE(config.experts.shares_sum_to_one);
  EXPECT_TRUE(config.has_experts(0) && config.has_experts(1));
  EXPECT_EQ(config.rope->theta, 1e6);
  EXPECT_TRUE(config.sliding_window.empty());
  EXPECT_EQ(parse(with(kMixtralConfig, "sliding_window", "24")).window(1), 24);
  EXPECT_EQ(parse(kLlamaConfig).experts.count, 0);
  EXPECT_FALSE(parse(kLlamaConfig).has_experts(0));
}

TEST(ModelConfig, GptOss) {
  const ModelConfig config = parse(kGptOssConfig);
  EXPECT_TRUE(config.attention.sinks);
  EXPECT_TRUE(config.attention.qkv_bias && config.attention.out_bias && config.experts.bias);
  EXPECT_EQ(config.mlp.activation, Activation::kSwigluOai);
  EXPECT_EQ(config.experts.count, 3);
  EXPECT_EQ(config.experts.per_token, 2);
  EXPECT_EQ(config.experts.ffn_size, 96);
  EXPECT_TRUE(config.experts.shares_sum_to_one);
  EXPECT_EQ(config.sliding_window, (std::vector<std::int64_t>{24, 0}));
  EXPECT_EQ(config.rope->scaling, RopeScaling::kYarn);
  EXPECT_EQ(config.rope->theta, 150000.0);
  EXPECT_FALSE(config.rope->yarn_truncate);
  EXPECT_EQ(config.max_positions, 256);
  // Left out of a file: every other layer slides.
  const std::string shorter = with(with(kGptOssConfig, "layer_types", ""), "sliding_window", "");
  EXPECT_EQ(parse(shorter).sliding_window, (std::vector<std::int64_t>{128, 0}));
  EXPECT_FALSE(parse(with(kGptOssConfig, "attention_bias", "false")).attention.out_bias);
  EXPECT_FALSE(parse(kLlamaConfig).attention.sinks);
}

TEST(ModelConfig, GptOssRefusesWhatItDoesNotCompute) {
  const auto refused = [](const std::string& key, const std::string& value) {
    return thrown_by([&] { (void)parse(with(kGptOssConfig, key, value)); });
  };
  expect_error(refused("quantization_config", R"({"quant_method": "gptq"})"), "E-CFG-QUANT",
               "quantization_config.quant_method: \"gptq\", expected mxfp4");
  expect_error(refused("quantization_config", "{}"), "E-CFG-QUANT", "quant_method: missing");
  expect_error(refused("swiglu_limit", "6.5"), "E-CFG-ACT", "swiglu_limit: 6.5, expected 7");
  expect_error(refused("swiglu_alpha", "1"), "E-CFG-ACT", "swiglu_alpha: 1, expected 1.702");
  expect_error(refused("rope_scaling", ""), "E-CFG-MISSING", "rope_scaling: missing");
  expect_error(refused("num_experts_per_tok", "4"), "E-CFG-EXPERTS", "num_local_experts");
  const std::string mxfp4 =
      with(kQwen3MoeConfig, "quantization_config", R"({"quant_method": "mxfp4"})");
  expect_error(thrown_by([&] { (void)parse(mxfp4); }), "E-CFG-QUANT", "quantization_config");
}

TEST(ModelConfig, ExpertsOfQwen3Moe) {
  const ModelConfig config = parse(kQwen3MoeConfig);
  EXPECT_EQ(config.experts.count, 16);
  EXPECT_EQ(config.experts.per_token, 4);
  EXPECT_EQ(config.experts.ffn_size, 24);
  EXPECT_TRUE(config.experts.shares_sum_to_one);
  EXPECT_TRUE(config.experts.plain_layers.empty());
  EXPECT_EQ(config.plain_ffn(), 0);
  EXPECT_EQ(config.norms.qk, QkNorm::kHead);
  const ModelConfig mixed =
      parse(with(with(kQwen3MoeConfig, "decoder_sparse_step", "2"), "mlp_only_layers", "[3]"));
  EXPECT_EQ(mixed.experts.plain_layers, (std::vector<bool>{true, false, true, true}));
  EXPECT_EQ(mixed.plain_ffn(), 96);
  // transformers 5 writes the number of experts by another name.
  const std::string newer =
      with(with(kQwen3MoeConfig, "num_experts", ""), "num_local_experts", "12");
  EXPECT_EQ(parse(newer).experts.count, 12);
  EXPECT_FALSE(parse(with(newer, "norm_topk_prob", "")).experts.shares_sum_to_one);
}

TEST(ModelConfig, FamiliesWithLayerNorm) {
  const ModelConfig falcon = parse(
      R"({"model_type":"falcon","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,
          "vocab_size":100,"multi_query":true,"parallel_attn":true,"alibi":false})");
  EXPECT_EQ(falcon.kv_heads, 1);
  EXPECT_EQ(falcon.ffn_size, 256);
  EXPECT_EQ(falcon.max_positions, 2048);
  EXPECT_TRUE(falcon.parallel_residual && falcon.norms.shared && !falcon.attention.qkv_bias);
  const ModelConfig gpt2 = parse(
      R"({"model_type":"gpt2","n_embd":64,"n_layer":2,"n_head":4,"n_positions":32,
          "vocab_size":100})");
  EXPECT_FALSE(gpt2.rope);
  EXPECT_EQ(gpt2.ffn_size, 256);
  EXPECT_EQ(gpt2.embedding.position_offset, 0);
  const std::string stable = with(llama_of_type("stablelm"), "layer_norm_eps", "1e-5");
  EXPECT_EQ(parse(stable).rope->rotary_dim, 4);
  EXPECT_FALSE(parse(stable).norms.shared);
  EXPECT_TRUE(parse(with(stable, "use_parallel_residual", "true")).norms.shared);
  expect_error(thrown_by([&] { (void)parse(with(stable, "qk_layernorm", "true")); }),
               "E-CFG-FEATURE", "qk_layernorm");
}

TEST(ModelConfig, EndOfTextIds) {
  Notes notes;
  EXPECT_EQ(parse(with(kLlamaConfig, "eos_token_id", "[9, 3.0, 9]")).eos_ids,
            (std::vector<std::int32_t>{3, 9}));
  EXPECT_TRUE(parse(with(kLlamaConfig, "eos_token_id", "null"), &notes).eos_ids.empty());
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("eos_token_id"), std::string::npos);
  EXPECT_EQ(parse(kLlamaConfig, nullptr, R"({"eos_token_id":[5,6]})").eos_ids,
            (std::vector<std::int32_t>{5, 6}));
  EXPECT_EQ(parse(kLlamaConfig, nullptr, R"({"temperature":0.5})").eos_ids,
            std::vector<std::int32_t>{2});
}

TEST(ModelConfig, OddValuesOfRealConfigsAreRead) {
  const ModelConfig plain = parse(kLlamaConfig);
  const ModelConfig floats =
      parse(with(with(kLlamaConfig, "hidden_size", std::to_string(plain.hidden_size) + ".0"),
                 "max_position_embeddings", std::to_string(plain.max_positions) + "e0"));
  EXPECT_EQ(floats.hidden_size, plain.hidden_size);
  EXPECT_EQ(floats.max_positions, plain.max_positions);
  for (const char* key : {"head_dim", "sliding_window", "rope_scaling", "pretraining_tp",
                          "attention_bias", "num_experts", "torch_dtype", "dtype"}) {
    EXPECT_EQ(parse(with(kLlamaConfig, key, "null")).head_dim, plain.head_dim) << key;
  }
  EXPECT_EQ(parse(with(kLlamaConfig, "num_experts", "0.0")).head_dim, plain.head_dim);
  EXPECT_EQ(parse(with(kLlamaConfig, "nobody_reads_this", "1" + std::string(40, '0'))).head_dim,
            plain.head_dim);
}

TEST(ModelConfig, CausalAttentionMayBeNamed) {
  EXPECT_EQ(parse(with(kQwen2Config, "is_causal", "true")).model_type, "qwen2");
}

TEST(ModelConfig, NotesCodeThatIsNeverRun) {
  Notes notes;
  (void)parse(with(kLlamaConfig, "auto_map", R"({"AutoModel":"evil.py"})"), &notes);
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("auto_map"), std::string::npos);
}

TEST(ModelConfig, ModelTypeMayBeImplied) {
  EXPECT_EQ(parse(with(kLlamaConfig, "model_type", "")).model_type, "llama");
  EXPECT_EQ(parse(with(kLlamaConfig, "architectures", "")).model_type, "llama");
  EXPECT_EQ(parse(with(kLlamaConfig, "architectures", "null")).architecture, "LlamaForCausalLM");
}

struct BadConfig {
  std::string name;
  std::string text;
  std::string code;
  std::string message;
};

void PrintTo(const BadConfig& bad, std::ostream* out) { *out << bad.name; }

TEST(ModelConfig, ATypeThatIsLikeNoneNamesNoNearest) {
  const Error error =
      thrown_by([] { (void)parse(with(kLlamaConfig, "model_type", "\"deepseek_v3\"")); });
  EXPECT_EQ(error.code(), "E-CFG-MODEL");
  EXPECT_EQ(error.message().find("nearest"), std::string::npos) << error.message();
}

std::vector<BadConfig> bad_configs() {
  const std::string llama = kLlamaConfig;
  const std::string sliding =
      with(with(kQwen2Config, "use_sliding_window", "true"), "sliding_window", "24");
  return {
      {"Empty", "", "E-CFG-JSON", "JSON"},
      {"NotJson", "{\"a\":}", "E-CFG-JSON", "byte 6"},
      {"Array", "[]", "E-CFG-TYPE", "array of 0, expected an object"},
      {"NaN", with(llama, "rms_norm_eps", "NaN"), "E-CFG-JSON", "no NaN"},
      {"DuplicateKey", "{\"a\":1,\"a\":2}", "E-CFG-JSON", "duplicate key"},
      {"UnknownType", with(llama, "model_type", "\"gemma4\""), "E-CFG-MODEL",
       "nearest supported type is gemma"},
      {"UnknownTypeMistral4", with(llama, "model_type", "\"mistral4\""), "E-CFG-MODEL",
       "nearest supported type is mistral"},
      {"UnknownTypeQwen2Moe", with(llama, "model_type", "\"qwen2_moe\""), "E-CFG-MODEL",
       "stablelm or starcoder2"},
      {"UnknownClass", with(llama, "architectures", "[\"LlamaForSequenceClassification\"]"),
       "E-CFG-MODEL", "architectures"},
      {"Disagree", with(llama, "model_type", "\"opt\""), "E-CFG-MODEL",
       "\"opt\" with architectures \"LlamaForCausalLM\""},
      {"NeitherTypeNorClass", "{\"hidden_size\":1}", "E-CFG-MISSING", "model_type"},
      {"ClassesNumber", with(llama, "architectures", "[1]"), "E-CFG-TYPE", "architectures[0]"},
      {"MissingHidden", with(llama, "hidden_size", ""), "E-CFG-MISSING",
       "hidden_size: missing, expected an integer: models of type llama need it"},
      {"MissingLayers", with(llama, "num_hidden_layers", ""), "E-CFG-MISSING", "num_hidden_layers"},
      {"MissingHeads", with(llama, "num_attention_heads", ""), "E-CFG-MISSING",
       "num_attention_heads"},
      {"MissingVocab", with(llama, "vocab_size", ""), "E-CFG-MISSING", "vocab_size"},
      {"MissingFfn", with(kOptConfig, "ffn_dim", ""), "E-CFG-MISSING", "type opt"},
      {"MissingKvHeads", with(kMistralConfig, "num_key_value_heads", ""), "E-CFG-MISSING",
       "num_key_value_heads"},
      {"StringSize", with(llama, "hidden_size", "\"64\""), "E-CFG-TYPE", "hidden_size: \"64\""},
      {"FloatSize", with(llama, "hidden_size", "64.5"), "E-CFG-TYPE", "hidden_size: 64.5"},
      {"NullSize", with(llama, "hidden_size", "null"), "E-CFG-TYPE", "hidden_size: null"},
      {"NegativeSize", with(llama, "hidden_size", "-64"), "E-CFG-TYPE", "hidden_size: -64"},
      {"ZeroLayers", with(llama, "num_hidden_layers", "0"), "E-CFG-TYPE", "at least 1"},
      {"StringFlag", with(llama, "mlp_bias", "\"no\""), "E-CFG-TYPE", "mlp_bias"},
      {"IndivisibleHeads", with(llama, "hidden_size", "62"), "E-CFG-HEADS",
       "hidden_size: 62, expected a multiple of num_attention_heads, which is 4"},
      {"KvHeadsNoDivisor", with(llama, "num_key_value_heads", "3"), "E-CFG-HEADS",
       "num_key_value_heads: 3"},
      {"KvHeadsMore", with(llama, "num_key_value_heads", "8"), "E-CFG-HEADS", "which is 4"},
      {"KvHeadsZero", with(llama, "num_key_value_heads", "0"), "E-CFG-HEADS", "at least 1"},
      {"NeoxHeadDim", with(kNeoxConfig, "head_dim", "32"), "E-CFG-HEADS", "head_dim: 32"},
      {"HugeLayers", with(llama, "num_hidden_layers", "1000000000"), "E-CFG-LIMIT", "at most 1024"},
      {"HugeVocab", with(llama, "vocab_size", "2147483648"), "E-CFG-LIMIT", "vocab_size"},
      {"HugeHidden", with(llama, "hidden_size", "1048576"), "E-CFG-LIMIT", "131072"},
      {"HugeHeadDim", with(llama, "head_dim", "4098"), "E-CFG-LIMIT", "at most 4096"},
      {"HugeHeadsTimesDim",
       with(with(with(llama, "head_dim", "4096"), "num_attention_heads", "512"),
            "num_key_value_heads", "512"),
       "E-CFG-LIMIT", "in all 512 heads"},
      {"HugePositions", with(llama, "max_position_embeddings", "1000000000000"), "E-CFG-LIMIT",
       "16777216"},
      {"Beyond63Bits", with(llama, "vocab_size", "9223372036854775808"), "E-CFG-LIMIT",
       "vocab_size"},
      {"SoftCapping", with(llama, "final_logit_softcapping", "30.0"), "E-CFG-FEATURE",
       "final_logit_softcapping: 30"},
      {"Alibi", with(llama, "alibi", "true"), "E-CFG-FEATURE", "alibi"},
      {"Experts", with(llama, "num_local_experts", "8"), "E-CFG-FEATURE", "num_local_experts: 8"},
      {"ExpertsPerToken", with(kMixtralConfig, "num_experts_per_tok", "9"), "E-CFG-EXPERTS",
       "num_experts_per_tok: 9, expected at most num_local_experts, which is 8"},
      {"ExpertsPerTokenZero", with(kMixtralConfig, "num_experts_per_tok", "0"), "E-CFG-TYPE",
       "num_experts_per_tok: 0, expected an integer of at least 1"},
      {"ExpertsString", with(kMixtralConfig, "num_local_experts", "\"8\""), "E-CFG-TYPE",
       "num_local_experts"},
      {"ExpertsZero", with(kQwen3MoeConfig, "num_experts", "0"), "E-CFG-TYPE", "num_experts: 0"},
      {"ExpertsHuge", with(kQwen3MoeConfig, "num_experts", "100000"), "E-CFG-LIMIT",
       "num_experts: 100000, expected at most 1024"},
      {"ExpertWidthHuge", with(kQwen3MoeConfig, "moe_intermediate_size", "99999999"), "E-CFG-LIMIT",
       "moe_intermediate_size"},
      {"ExpertsOfNoLayer", with(kQwen3MoeConfig, "decoder_sparse_step", "5"), "E-CFG-EXPERTS",
       "expected a layer with experts"},
      {"ExpertsOfAMissingLayer", with(kQwen3MoeConfig, "mlp_only_layers", "[0,4]"), "E-CFG-EXPERTS",
       "mlp_only_layers[1]: 4, expected a layer from 0 to 3"},
      {"PlainLayersNumber", with(kQwen3MoeConfig, "mlp_only_layers", "1"), "E-CFG-TYPE",
       "mlp_only_layers: 1, expected an array"},
      {"SharedExperts", with(kQwen3MoeConfig, "n_routed_experts", "8"), "E-CFG-FEATURE",
       "n_routed_experts"},
      {"ParallelAttention", with(llama, "parallel_attn", "true"), "E-CFG-FEATURE", "parallel_attn"},
      {"ParallelResidual", with(llama, "use_parallel_residual", "true"), "E-CFG-FEATURE",
       "use_parallel_residual"},
      {"Bidirectional", with(kGemmaConfig, "use_bidirectional_attention", "true"), "E-CFG-FEATURE",
       "use_bidirectional_attention"},
      {"NotCausal", with(kQwen2Config, "is_causal", "false"), "E-CFG-FEATURE",
       "is_causal: false, expected causal attention"},
      {"CausalNull", with(kQwen2Config, "is_causal", "null"), "E-CFG-FEATURE", "is_causal: null"},
      {"Multiplier", with(llama, "embedding_multiplier", "12.0"), "E-CFG-FEATURE", "expected 1"},
      {"Quantized", with(llama, "quantization_config", R"({"quant_method":"gptq"})"), "E-CFG-QUANT",
       "quantization_config: quant_method \"gptq\", expected"},
      {"PartialRotary", with(llama, "partial_rotary_factor", "0.5"), "E-CFG-FEATURE",
       "partial_rotary_factor"},
      {"Activation", with(llama, "hidden_act", "\"relu2\""), "E-CFG-ACT", "hidden_act: \"relu2\""},
      {"GemmaActivations", with(kGemmaConfig, "hidden_activation", "\"relu\""), "E-CFG-ACT",
       "hidden_activation"},
      {"EosBeyondVocab", with(llama, "eos_token_id", "100"), "E-CFG-EOS", "0 to 99"},
      {"EosNegative", with(llama, "eos_token_id", "-1"), "E-CFG-EOS", "eos_token_id: -1"},
      {"EosInListBeyond", with(llama, "eos_token_id", "[1,100]"), "E-CFG-EOS", "eos_token_id[1]"},
      {"EosString", with(llama, "eos_token_id", "\"</s>\""), "E-CFG-EOS", "token id"},
      {"BosBeyondVocab", with(llama, "bos_token_id", "100"), "E-CFG-EOS", "bos_token_id"},
      {"EpsilonZero", with(llama, "rms_norm_eps", "0"), "E-CFG-NORM", "rms_norm_eps: 0"},
      {"EpsilonNegative", with(llama, "rms_norm_eps", "-1e-5"), "E-CFG-NORM", "above 0"},
      {"LayerTypesShort", with(sliding, "layer_types", "[\"full_attention\"]"), "E-CFG-TYPE",
       "array of 3 names"},
      {"LayerTypesUnknown",
       with(sliding, "layer_types", R"(["full_attention","linear_attention","full_attention"])"),
       "E-CFG-FEATURE", "layer_types[1]"},
      {"LayerTypesWithoutWindow",
       with(kQwen2Config, "layer_types",
            R"(["full_attention","sliding_attention","full_attention"])"),
       "E-CFG-FEATURE", "use_sliding_window"},
      {"Nested", std::string(1'000'000, '['), "E-CFG-JSON", "deeper than"},
      {"InvalidUtf8", "{\"a\":\"\xff\"}", "E-CFG-JSON", "0xff"},
  };
}

class BadModelConfig : public testing::TestWithParam<BadConfig> {};

TEST_P(BadModelConfig, IsRefusedByField) {
  const Error error = thrown_by([&] { (void)parse(GetParam().text); });
  expect_error(error, GetParam().code, GetParam().message);
  EXPECT_EQ(exit_code(error.role()), 3);
  EXPECT_TRUE(error.message().starts_with("config.json")) << error.message();
}

INSTANTIATE_TEST_SUITE_P(All, BadModelConfig, testing::ValuesIn(bad_configs()),
                         [](const auto& tested) { return tested.param.name; });

TEST(ModelConfig, GenerationConfigErrorsNameTheirFile) {
  expect_error(thrown_by([] { (void)parse(kLlamaConfig, nullptr, R"({"eos_token_id":100})"); }),
               "E-CFG-EOS", "generation_config.json: eos_token_id");
  expect_error(thrown_by([] { (void)parse(kLlamaConfig, nullptr, "[]"); }), "E-CFG-TYPE",
               "generation_config.json: top level");
}

TEST(ModelConfig, AByteOrderMarkIsAccepted) {
  EXPECT_EQ(parse(std::string("\xEF\xBB\xBF") + kLlamaConfig).hidden_size, 64);
}

TEST(BuiltinShapes, AreWholeConfigs) {
  EXPECT_FALSE(builtin_shape("gpt-5"));
  for (const std::string& name : builtin_shape_names()) {
    const std::optional<ModelConfig> config = builtin_shape(name);
    ASSERT_TRUE(config) << name;
    EXPECT_EQ(config->q_width(), config->hidden_size) << name;
    EXPECT_EQ(config->heads % config->kv_heads, 0) << name;
    EXPECT_EQ(config->rope.has_value(), config->model_type != "opt") << name;
    EXPECT_FALSE(config->eos_ids.empty()) << name;
  }
  for (const char* name : {"opt-6.7b", "opt-13b", "opt-30b", "llama-7b", "llama-13b", "llama-33b",
                           "llama-2-7b", "llama-3-8b", "pythia-6.9b", "pythia-12b", "mistral-7b"}) {
    EXPECT_TRUE(builtin_shape(name)) << name;
  }
}

}  // namespace
}  // namespace triphase
