#include "models/files/model_directory.h"

#include <cmath>

#include "memory/host_device.h"
#include "models/model_summary.h"
#include "models/weights/weight_lookup.h"
#include "models/weights/weights.h"
#include "tests/support/paths.h"
#include "tests/unit/models/checkpoint_builder.h"
#include "tests/unit/models/config_text.h"
#include "tests/unit/models/error_matcher.h"

namespace triphase {
namespace {

// Checkpoints as transformers saves them, of every family (tests/fixtures/parity).
TEST(ModelDirectory, CheckpointsOfEveryFamilyLoad) {
  const std::string root = source_path("tests/fixtures/parity");
  int checkpoints = 0;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    if (!entry.is_directory()) continue;
    SCOPED_TRACE(entry.path().filename().string());
    const ModelDirectory model = open_model_directory(entry.path().string());
    const ModelSummary summary = summarise_model(model);
    EXPECT_GT(summary.parameters, 0U);
    EXPECT_FALSE(summary.weight_files.empty());
    HostDevice device;
    Notes notes;
    const auto weights = load_weights(*model.files, model.config, device, {}, notes, {});
    EXPECT_EQ(weights->bytes, summary.weight_bytes);
    EXPECT_TRUE(notes.empty()) << notes.front();
    ++checkpoints;
  }
  EXPECT_GE(checkpoints, 6);
}

TEST(ModelDirectory, GemmaScaleFollowsTheFiles) {
  const TemporaryDirectory directory;
  directory.write("config.json", with(kGemmaConfig, "torch_dtype", "\"float32\""));
  directory.write("model.safetensors",
                  safetensors({tensor16("model.embed_tokens.weight", "BF16", {100, 48},
                                        std::vector<std::uint16_t>(4800, 0))}));
  EXPECT_EQ(open_model_directory(directory.path()).config.embedding.scale, 6.9375F);
  EXPECT_EQ(open_model_directory(directory.path(), {.weights = false}).config.embedding.scale,
            std::sqrt(48.0F));
}

TEST(ModelDirectory, AnAdapterBesideTheModelIsNoted) {
  const TemporaryDirectory directory;
  directory.write("config.json", kGemmaConfig);
  EXPECT_TRUE(open_model_directory(directory.path(), {.weights = false}).notes.empty());
  directory.write("adapter_config.json", "{}");
  const Notes notes = open_model_directory(directory.path(), {.weights = false}).notes;
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("adapter_config.json is here and not applied"), std::string::npos);
}

TEST(ModelDirectory, AHeadOfItsOwnUntiesTheEmbeddings) {
  const TemporaryDirectory directory;
  directory.write("config.json", with(kLlamaConfig, "tie_word_embeddings", "true"));
  std::vector<std::uint16_t> values(6400, 1);
  std::vector<BuiltTensor> tensors{
      tensor16("model.embed_tokens.weight", "BF16", {100, 64}, values)};
  const auto open = [&] {
    directory.write("model.safetensors", safetensors(tensors));
    return open_model_directory(directory.path());
  };
  EXPECT_TRUE(open().config.embedding.tied);
  tensors.push_back(tensor16("lm_head.weight", "BF16", {100, 64}, values));
  EXPECT_TRUE(open().config.embedding.tied);
  EXPECT_TRUE(open().notes.empty());
  values.back() = 2;
  tensors.back() = tensor16("language_model.lm_head.weight", "BF16", {100, 64}, values);
  const ModelDirectory untied = open();
  EXPECT_FALSE(untied.config.embedding.tied);
  ASSERT_EQ(untied.notes.size(), 1U);
  EXPECT_EQ(
      untied.notes[0],
      "weights: language_model.lm_head.weight differs from the embeddings in numbers or type, "
      "so the two are not tied");
}

TEST(ModelDirectory, TensorsCanBeCheckedBeforeLoading) {
  const ModelDirectory model =
      open_model_directory(source_path("tests/fixtures/parity/gemma-bf16"));
  EXPECT_EQ(model.config.embedding.scale, 8.0F);
  check_weight_tensors(*model.files, model.config);
  ModelConfig config = model.config;
  config.ffn_size += 1;
  expect_error(thrown_by([&] { check_weight_tensors(*model.files, config); }), "E-ST-SHAPE",
               "gate_proj");
}

TEST(ModelDirectory, ConfigFilesThatCannotBeRead) {
  const TemporaryDirectory directory;
  const auto open = [&] {
    return thrown_by([&] { (void)open_model_directory(directory.path()); });
  };
  expect_error(open(), "E-CFG-FILE", "config.json: open: No such file");
  directory.write("config.json", "");
  expect_error(open(), "E-CFG-JSON", "config.json");
  directory.write("config.json", std::string((16 << 20) + 1, ' '));
  expect_error(open(), "E-CFG-FILE", "16777217 bytes");
  directory.write("config.json", kLlamaConfig);
  directory.write("generation_config.json", "{");
  expect_error(open(), "E-CFG-JSON", "generation_config.json");
  directory.write("generation_config.json", "{}");
  expect_error(open(), "E-ST-NONE", "none");
  EXPECT_TRUE(open_model_directory(directory.path(), {.weights = false}).generation_config);
}

TEST(ModelSummary, CountsWhatInspectPrints) {
  const TemporaryDirectory directory;
  directory.write("config.json", with(with(kLlamaConfig, "num_hidden_layers", "1"),
                                      "tie_word_embeddings", "true"));
  directory.write("tokenizer.json", "{}");
  std::vector<BuiltTensor> tensors;
  const auto add = [&](const std::string& name, std::size_t rows, std::size_t cols) {
    if (cols == 0) {
      tensors.push_back(f32_tensor("model." + name, {rows}, std::vector<float>(rows)));
    } else {
      tensors.push_back(
          tensor16("model." + name, "F16", {rows, cols}, std::vector<std::uint16_t>(rows * cols)));
    }
  };
  add("embed_tokens.weight", 100, 64);
  add("norm.weight", 64, 0);
  add("layers.0.input_layernorm.weight", 64, 0);
  add("layers.0.post_attention_layernorm.weight", 64, 0);
  add("layers.0.self_attn.q_proj.weight", 64, 64);
  add("layers.0.self_attn.k_proj.weight", 32, 64);
  add("layers.0.self_attn.v_proj.weight", 32, 64);
  add("layers.0.self_attn.o_proj.weight", 64, 64);
  add("layers.0.mlp.gate_proj.weight", 96, 64);
  add("layers.0.mlp.up_proj.weight", 96, 64);
  add("layers.0.mlp.down_proj.weight", 64, 96);
  directory.write("model.safetensors", safetensors(tensors));
  const ModelSummary summary = summarise_model(open_model_directory(directory.path()));
  const std::uint64_t matrices = 100 * 64 + 64 * 64 * 2 + 32 * 64 * 2 + 96 * 64 * 3;
  EXPECT_EQ(summary.parameters, matrices + 3 * 64);
  EXPECT_EQ(summary.weights_dtype, DType::kF16);
  EXPECT_EQ(summary.weight_bytes,
            weight_bytes(parse(with(with(kLlamaConfig, "num_hidden_layers", "1"),
                                    "tie_word_embeddings", "true")),
                         DType::kF16));
  EXPECT_EQ(summary.tensor_count, 11U);
  ASSERT_EQ(summary.dtypes.size(), 2U);
  EXPECT_EQ(summary.dtypes[0].name, "F16");
  EXPECT_EQ(summary.dtypes[0].bytes, 2 * matrices);
  EXPECT_EQ(summary.dtypes[1].tensors, 3U);
  EXPECT_EQ(summary.tokenizer_files, std::vector<std::string>{"tokenizer.json"});
  ASSERT_EQ(summary.kv.size(), 3U);
  EXPECT_EQ(summary.kv[1].bytes_per_token, 2U * 2 * 16 * 2);
  EXPECT_EQ(summary.tensors.front().name, "model.embed_tokens.weight");
  EXPECT_EQ(summary.tensors.front().shape, (std::vector<std::uint64_t>{100, 64}));
}

}  // namespace
}  // namespace triphase
