// Language models inside of others: which fields count, the text_config's or those around it.

#include "models/config/model_config.h"
#include "tests/unit/models/config_text.h"
#include "tests/unit/models/error_matcher.h"

namespace triphase {
namespace {

TEST(WrappedConfig, LanguageModelsInsideOthers) {
  const auto wrapped = [](const std::string& text, const std::string& more = {}) {
    return R"({"architectures":["Mistral3ForConditionalGeneration"],"model_type":"mistral3",)" +
           more + R"("vision_config":{"hidden_size":8},"text_config":)" + text + "}";
  };
  Notes notes;
  const ModelConfig config =
      parse(wrapped(with(kMistralConfig, "eos_token_id", ""), R"("eos_token_id":7,)"), &notes);
  EXPECT_EQ(config.model_type, "mistral");
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.eos_ids, std::vector<std::int32_t>{7});
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("only the language model"), std::string::npos);
  expect_error(thrown_by([&] {
                 (void)parse(wrapped(kMistralConfig, R"("quantization_config":{"bits":4},)"));
               }),
               "E-CFG-QUANT", "quantization_config");
  expect_error(thrown_by([&] { (void)parse(wrapped(with(kQwen2Config, "hidden_size", ""))); }),
               "E-CFG-MISSING", "text_config.hidden_size");
  expect_error(thrown_by([&] { (void)parse(wrapped(with(kMistralConfig, "hidden_size", "0"))); }),
               "E-CFG-TYPE", "text_config.hidden_size: 0");
  expect_error(
      thrown_by([&] { (void)parse(wrapped(with(kMistralConfig, "model_type", "\"mllama\""))); }),
      "E-CFG-MODEL", "text_config.model_type");
}

// As llava-1.5-7b-hf and llava-v1.6-mistral-7b-hf have it.
TEST(WrappedConfig, LlavaLeavesOutTheSizesOfItsLanguageModel) {
  const auto inside = [](const std::string& text) {
    return parse(R"({"model_type":"llava","text_config":{"vocab_size":32064,)" + text + "}}");
  };
  const ModelConfig llama =
      inside(R"("model_type":"llama","max_position_embeddings":4096,"rms_norm_eps":1e-05)");
  EXPECT_EQ(llama.hidden_size, 4096);
  EXPECT_EQ(llama.layers, 32);
  EXPECT_EQ(llama.head_dim, 128);
  EXPECT_EQ(llama.kv_heads, 32);
  EXPECT_EQ(llama.ffn_size, 11008);
  EXPECT_EQ(llama.max_positions, 4096);
  EXPECT_EQ(llama.vocab_size, 32064);
  const ModelConfig mistral =
      inside(R"("model_type":"mistral","num_key_value_heads":8,"sliding_window":null)");
  EXPECT_EQ(mistral.hidden_size, 4096);
  EXPECT_EQ(mistral.ffn_size, 14336);
  EXPECT_EQ(mistral.max_positions, 131072);
}

TEST(WrappedConfig, WrappersDecideAboutTheHead) {
  const auto tied = [](const std::string& type, const std::string& outer,
                       const std::string& inner) {
    const std::string text =
        inner.empty() ? kLlamaConfig : with(kLlamaConfig, "tie_word_embeddings", inner);
    return parse(R"({"model_type":")" + type + "\"," +
                 (outer.empty() ? "" : "\"tie_word_embeddings\":" + outer + ",") +
                 R"("text_config":)" + text + "}")
        .embedding.tied;
  };
  EXPECT_FALSE(tied("llava", "", ""));
  EXPECT_TRUE(tied("llava", "", "true"));
  EXPECT_TRUE(tied("llava", "true", ""));
  EXPECT_TRUE(tied("llava", "true", "false"));
  EXPECT_TRUE(tied("llava", "false", "true"));
  EXPECT_TRUE(tied("mistral3", "", ""));
  EXPECT_TRUE(tied("mistral3", "", "false"));
  EXPECT_FALSE(tied("mistral3", "false", ""));
  EXPECT_FALSE(tied("internvl", "false", "false"));
  // Inside Gemma 3 only its own default says otherwise.
  const std::string gemma =
      with(with(kGemmaConfig, "model_type", "\"gemma3_text\""), "architectures", "null");
  const std::string around = R"({"model_type":"gemma3","tie_word_embeddings":false,"text_config":)";
  EXPECT_FALSE(parse(around + gemma + "}").embedding.tied);
}

TEST(WrappedConfig, ALanguageModelThatIsNotCausalIsRefused) {
  expect_error(thrown_by([&] {
                 (void)parse(R"({"model_type":"llava","text_config":)" +
                             with(kLlamaConfig, "is_causal", "false") + "}");
               }),
               "E-CFG-FEATURE", "text_config.is_causal: false");
}

TEST(WrappedConfig, ErrorsNameElementsByTheirWholePath) {
  expect_error(thrown_by([&] {
                 (void)parse(R"({"model_type":"llava","text_config":)" +
                             with(kLlamaConfig, "eos_token_id", "[1,100]") + "}");
               }),
               "E-CFG-EOS", "text_config.eos_token_id[1]: 100");
}

TEST(WrappedConfig, PaliGemmaAttendsBothWaysWhereItDoesNotSay) {
  const std::string around = R"({"model_type":"paligemma","text_config":)";
  expect_error(thrown_by([&] { (void)parse(around + kGemmaConfig + "}"); }), "E-CFG-FEATURE",
               "text_config.use_bidirectional_attention: missing, expected false");
  EXPECT_TRUE(parse(around + with(kGemmaConfig, "use_bidirectional_attention", "false") + "}")
                  .embedding.tied);
}

}  // namespace
}  // namespace triphase
