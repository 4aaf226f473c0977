#include "models/weights/weights.h"

#include <cmath>
#include <numeric>

#include "memory/host_device.h"
#include "models/config/tensor_manifest.h"
#include "models/files/weight_files.h"
#include "tests/unit/models/checkpoint_builder.h"
#include "tests/unit/models/config_text.h"
#include "tests/unit/models/error_matcher.h"

namespace triphase {
namespace {

// Every tensor of the manifest with values that tell tensor and element apart: tensor t, element e
// holds t + e / 65536. Exact in F32.
class Checkpoint {
 public:
  explicit Checkpoint(const std::string& config_text, const std::string& prefix)
      : config_(parse(config_text)) {
    for (const WeightEntry& entry : weight_manifest(config_)) {
      for (const TensorPart& part : entry.parts) {
        std::vector<float> values(static_cast<std::size_t>(part.rows * entry.cols));
        for (std::size_t e = 0; e < values.size(); ++e) {
          values[e] = value(tensors_.size(), static_cast<std::int64_t>(e));
        }
        std::vector<std::size_t> shape{static_cast<std::size_t>(part.rows_of_each())};
        if (!entry.vector) {
          shape.insert(part.transposed ? shape.begin() : shape.end(),
                       static_cast<std::size_t>(entry.cols));
        }
        if (part.stacked > 0) shape.insert(shape.begin(), static_cast<std::size_t>(part.stacked));
        tensors_.push_back(f32_tensor((part.prefixed ? prefix : "") + part.name, shape, values));
      }
    }
  }

  static float value(std::size_t tensor, std::int64_t element) {
    return static_cast<float>(tensor) + static_cast<float>(element) / 65536.0F;
  }

  [[nodiscard]] std::size_t number(const std::string& name) const {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].name == name) return i;
    }
    ADD_FAILURE() << "no tensor " << name;
    return 0;
  }
  BuiltTensor& tensor(const std::string& name) { return tensors_[number(name)]; }
  std::vector<BuiltTensor>& tensors() { return tensors_; }
  ModelConfig& config() { return config_; }

  std::unique_ptr<ModelWeights> load(const WeightOptions& options = {}) {
    const TemporaryDirectory directory;
    directory.write("model.safetensors", safetensors(tensors_));
    notes_.clear();
    const WeightFiles files = WeightFiles::open(DirectoryHandle(directory.path()), false, notes_);
    progress_.clear();
    return load_weights(
        files, config_, device_, options, notes_,
        [this](std::uint64_t done, std::uint64_t total) { progress_.emplace_back(done, total); });
  }
  Error load_error(const WeightOptions& options = {}) {
    return thrown_by([&] { (void)load(options); });
  }

  [[nodiscard]] const Notes& notes() const { return notes_; }
  [[nodiscard]] const auto& progress() const { return progress_; }

 private:
  ModelConfig config_;
  std::vector<BuiltTensor> tensors_;
  HostDevice device_;
  Notes notes_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> progress_;
};

float at(const ConstMatrix& matrix, std::int64_t row, std::int64_t col) {
  EXPECT_EQ(matrix.dtype, DType::kF32);
  return static_cast<const float*>(matrix.data)[row * matrix.row_stride + col];
}

TEST(LoadWeights, LlamaPartsAreFused) {
  Checkpoint checkpoint(kLlamaConfig, "model.");
  const auto weights = checkpoint.load();
  ASSERT_EQ(weights->layers.size(), 2U);
  const LayerWeights& layer = weights->layers[1];
  const auto expect = [&](const ConstMatrix& matrix, std::int64_t row, const std::string& name,
                          std::int64_t source_row) {
    for (const std::int64_t col : {std::int64_t{0}, matrix.cols - 1}) {
      EXPECT_EQ(at(matrix, row, col),
                Checkpoint::value(checkpoint.number("model.layers.1." + name + ".weight"),
                                  source_row * matrix.cols + col))
          << name;
    }
  };
  EXPECT_EQ(layer.qkv.rows, 128);
  EXPECT_EQ(layer.qkv.cols, 64);
  expect(layer.qkv, 0, "self_attn.q_proj", 0);
  expect(layer.qkv, 63, "self_attn.q_proj", 63);
  expect(layer.qkv, 64, "self_attn.k_proj", 0);
  expect(layer.qkv, 96, "self_attn.v_proj", 0);
  expect(layer.qkv, 127, "self_attn.v_proj", 31);
  expect(layer.up, 0, "mlp.gate_proj", 0);
  expect(layer.up, 96, "mlp.up_proj", 0);
  expect(layer.up, 191, "mlp.up_proj", 95);
  expect(layer.down, 63, "mlp.down_proj", 63);
  expect(layer.attention_out, 5, "self_attn.o_proj", 5);
  EXPECT_EQ(
      layer.mlp_norm[63],
      Checkpoint::value(checkpoint.number("model.layers.1.post_attention_layernorm.weight"), 63));
  EXPECT_EQ(at(weights->embedding, 99, 3), Checkpoint::value(0, 99 * 64 + 3));
  EXPECT_EQ(at(weights->lm_head, 7, 7),
            Checkpoint::value(checkpoint.number("lm_head.weight"), 7 * 64 + 7));
  EXPECT_EQ(layer.qkv_bias, nullptr);
  EXPECT_EQ(layer.attention_norm_bias, nullptr);
  EXPECT_TRUE(weights->positions.empty());
  EXPECT_EQ(weights->bytes, weight_bytes(checkpoint.config(), DType::kF32));
  EXPECT_TRUE(checkpoint.notes().empty());

  for (const ConstMatrix& matrix : {layer.qkv, layer.up, layer.down, layer.attention_out}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(matrix.data) % 64, 0U);
  }
  ASSERT_FALSE(checkpoint.progress().empty());
  std::uint64_t total = 0;
  for (const BuiltTensor& tensor : checkpoint.tensors()) total += tensor.data.size();
  EXPECT_EQ(checkpoint.progress().back(), std::pair(total, total));
  EXPECT_TRUE(std::is_sorted(checkpoint.progress().begin(), checkpoint.progress().end()));
}

TEST(LoadWeights, NeoxRowsArePutInOrder) {
  Checkpoint checkpoint(kNeoxConfig, "gpt_neox.");
  const auto weights = checkpoint.load();
  const LayerWeights& layer = weights->layers[1];
  const std::string name = "gpt_neox.layers.1.attention.query_key_value";
  const std::size_t matrix = checkpoint.number(name + ".weight");
  const std::size_t bias = checkpoint.number(name + ".bias");
  for (std::int64_t which = 0; which < 3; ++which) {
    for (std::int64_t head = 0; head < 4; ++head) {
      for (std::int64_t channel = 0; channel < 16; ++channel) {
        const std::int64_t source = (head * 3 + which) * 16 + channel;
        const std::int64_t target = which * 64 + head * 16 + channel;
        EXPECT_EQ(at(layer.qkv, target, 9), Checkpoint::value(matrix, source * 64 + 9));
        EXPECT_EQ(layer.qkv_bias[target], Checkpoint::value(bias, source));
      }
    }
  }
  EXPECT_EQ(at(layer.up, 255, 1),
            Checkpoint::value(checkpoint.number("gpt_neox.layers.1.mlp.dense_h_to_4h.weight"),
                              255 * 64 + 1));
  EXPECT_NE(layer.up_bias, nullptr);
  EXPECT_NE(weights->final_norm_bias, nullptr);
}

// More rows than one staging buffer holds, so that chunks end inside heads.
TEST(LoadWeights, NeoxRowsAcrossChunks) {
  Checkpoint checkpoint(
      with(with(with(with(with(kNeoxConfig, "hidden_size", "1040"), "intermediate_size", "8"),
                     "num_attention_heads", "5"),
                "num_hidden_layers", "1"),
           "max_position_embeddings", "8"),
      "gpt_neox.");
  const auto weights = checkpoint.load();
  const std::size_t matrix =
      checkpoint.number("gpt_neox.layers.0.attention.query_key_value.weight");
  for (std::int64_t target = 0; target < 3 * 1040; ++target) {
    const std::int64_t which = target / 1040;
    const std::int64_t head = target % 1040 / 208;
    const std::int64_t source = (head * 3 + which) * 208 + target % 208;
    ASSERT_EQ(at(weights->layers[0].qkv, target, 77), Checkpoint::value(matrix, source * 1040 + 77))
        << target;
  }
}

TEST(LoadWeights, OptPartsAndPrefixes) {
  const std::string config =
      with(with(kOptConfig, "do_layer_norm_before", "false"), "word_embed_proj_dim", "32");
  for (const std::string prefix : {"model.decoder.", "decoder.", ""}) {
    Checkpoint checkpoint(config, prefix);
    const auto weights = checkpoint.load();
    EXPECT_EQ(weights->embedding.cols, 32);
    EXPECT_EQ(weights->positions.rows, 130);
    EXPECT_EQ(weights->embed_project_in.rows, 64);
    EXPECT_EQ(weights->embed_project_out.rows, 32);
    EXPECT_EQ(weights->final_norm, nullptr);
    EXPECT_EQ(weights->lm_head.data, weights->embedding.data);
    EXPECT_EQ(weights->layers[0].qkv_bias[64],
              Checkpoint::value(checkpoint.number(prefix + "layers.0.self_attn.k_proj.bias"), 0));
  }
}

TEST(LoadWeights, BaseModelsAndOtherHeadNames) {
  Checkpoint base(with(kLlamaConfig, "tie_word_embeddings", "true"), "");
  EXPECT_EQ(base.load()->lm_head.data != nullptr, true);
  Checkpoint neox(kNeoxConfig, "gpt_neox.");
  neox.tensor("embed_out.weight").name = "lm_head.weight";
  const auto weights = neox.load();
  EXPECT_EQ(at(weights->lm_head, 0, 1), Checkpoint::value(neox.number("lm_head.weight"), 1));
}

TEST(LoadWeights, LanguageModelsInsideOthers) {
  const std::string config =
      std::string(R"({"model_type":"llava","text_config":)") + kLlamaConfig + "}";
  for (const std::string prefix :
       {"language_model.model.", "model.language_model.", "model.text_model."}) {
    Checkpoint checkpoint(config, prefix);
    const bool outside = prefix.starts_with("model.");
    const std::string head = outside ? "lm_head.weight" : "language_model.lm_head.weight";
    checkpoint.tensor("lm_head.weight").name = head;
    const auto weights = checkpoint.load();
    EXPECT_EQ(at(weights->lm_head, 0, 1), Checkpoint::value(checkpoint.number(head), 1));
    EXPECT_EQ(
        at(weights->layers[1].down, 3, 1),
        Checkpoint::value(checkpoint.number(prefix + "layers.1.mlp.down_proj.weight"), 3 * 96 + 1));
  }
}

// 5 query heads for each of 2 KV heads.
TEST(LoadWeights, FalconRowsArePutInOrder) {
  Checkpoint checkpoint(R"({"model_type":"falcon","hidden_size":40,"num_hidden_layers":1,
                            "num_attention_heads":10,"num_kv_heads":2,"vocab_size":100,
                            "new_decoder_architecture":true})",
                        "transformer.");
  const auto weights = checkpoint.load();
  const std::size_t matrix =
      checkpoint.number("transformer.h.0.self_attention.query_key_value.weight");
  for (std::int64_t row = 0; row < 14 * 4; ++row) {
    const std::int64_t head = row / 4;
    std::int64_t source = head < 10 ? head / 5 * 7 + head % 5 : (head - 10) % 2 * 7 + 5;
    if (head >= 12) ++source;
    EXPECT_EQ(at(weights->layers[0].qkv, row, 9),
              Checkpoint::value(matrix, (source * 4 + row % 4) * 40 + 9))
        << row;
  }
}

TEST(LoadWeights, NeighbouringRotaryChannelsArePutApart) {
  Checkpoint checkpoint(
      with(with(with(kLlamaConfig, "model_type", "\"glm\""), "architectures", "null"), "head_dim",
           "16"),
      "model.");
  const auto weights = checkpoint.load();
  const std::size_t matrix = checkpoint.number("model.layers.0.self_attn.k_proj.weight");
  // Of a head's 16 channels 8 are rotated.
  constexpr std::int64_t kSources[] = {0, 2, 4, 6, 1, 3, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  for (std::int64_t row = 0; row < 32; ++row) {
    const std::int64_t source = row / 16 * 16 + kSources[row % 16];
    EXPECT_EQ(at(weights->layers[0].qkv, 64 + row, 5), Checkpoint::value(matrix, source * 64 + 5));
  }
}

// Row `row` of the gates and ups of 3 experts in the file.
std::int64_t source_of_gate_up(std::int64_t row) {
  const std::int64_t within = row % 192;
  return row - within + (within < 96 ? 2 * within : 2 * (within - 96) + 1);
}

TEST(LoadWeights, StackedExpertsAreTransposedAndPutApart) {
  Checkpoint checkpoint(kGptOssConfig, "model.");
  const auto weights = checkpoint.load();
  const LayerWeights& layer = weights->layers[1];
  const std::string experts = "model.layers.1.mlp.experts.";
  const std::size_t up = checkpoint.number(experts + "gate_up_proj");
  const std::size_t up_bias = checkpoint.number(experts + "gate_up_proj_bias");
  const std::size_t down = checkpoint.number(experts + "down_proj");
  ASSERT_EQ(layer.up.rows, 3 * 192);
  ASSERT_EQ(layer.down.rows, 3 * 64);
  for (std::int64_t row = 0; row < layer.up.rows; ++row) {
    const std::int64_t source = source_of_gate_up(row);
    const std::int64_t at_first = source / 192 * 64 * 192 + source % 192;
    EXPECT_EQ(at(layer.up, row, 0), Checkpoint::value(up, at_first));
    EXPECT_EQ(at(layer.up, row, 63), Checkpoint::value(up, at_first + 63 * 192));
    EXPECT_EQ(layer.up_bias[row], Checkpoint::value(up_bias, source));
  }
  for (std::int64_t row = 0; row < layer.down.rows; ++row) {
    const std::int64_t at_first = row / 64 * 96 * 64 + row % 64;
    EXPECT_EQ(at(layer.down, row, 95), Checkpoint::value(down, at_first + 95 * 64));
  }
  EXPECT_EQ(layer.down_bias[191],
            Checkpoint::value(checkpoint.number(experts + "down_proj_bias"), 191));
  EXPECT_EQ(layer.router_bias[2],
            Checkpoint::value(checkpoint.number("model.layers.1.mlp.router.bias"), 2));
  EXPECT_EQ(layer.sinks[3],
            Checkpoint::value(checkpoint.number("model.layers.1.self_attn.sinks"), 3));
  EXPECT_EQ(weights->bytes, weight_bytes(checkpoint.config(), DType::kF32));
  EXPECT_EQ(checkpoint.progress().back().first, checkpoint.progress().back().second);

  BuiltTensor& wrong = checkpoint.tensor(experts + "down_proj");
  wrong.shape = {3, 64, 96};
  expect_error(checkpoint.load_error(), "E-ST-SHAPE",
               "down_proj: [3, 64, 96], expected [3, 96, 64] (num_local_experts and "
               "intermediate_size and hidden_size in config.json)");
}

// The experts of layer 0 in MXFP4.
class Mxfp4Checkpoint : public Checkpoint {
 public:
  Mxfp4Checkpoint() : Checkpoint(kGptOssConfig, "model.") {
    put("gate_up_proj", 192, 64);
    put("down_proj", 64, 96);
  }
  static unsigned block(std::int64_t index) { return static_cast<unsigned>(index * 37 % 256); }
  static unsigned scale(std::int64_t index) { return static_cast<unsigned>(120 + index % 9); }
  // Element (row, col) of a matrix of so many columns, from the definition.
  static float dequantized(std::int64_t row, std::int64_t col, std::int64_t cols) {
    constexpr float kMagnitudes[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
    const std::int64_t element = row * cols + col;
    const unsigned code = block(element / 2) >> (element % 2 * 4) & 15;
    const float size =
        std::ldexp(kMagnitudes[code % 8], static_cast<int>(scale(element / 32)) - 127);
    return code < 8 ? size : -size;
  }

 private:
  void put(const std::string& matrix, std::size_t rows, std::size_t cols) {
    const std::string name = "model.layers.0.mlp.experts." + matrix;
    BuiltTensor blocks{name + "_blocks", "U8", {3, rows, cols / 32, 16}, {}};
    for (std::size_t i = 0; i < 3 * rows * cols / 2; ++i) {
      blocks.data += static_cast<char>(block(static_cast<std::int64_t>(i)));
    }
    BuiltTensor scales{name + "_scales", "U8", {3, rows, cols / 32}, {}};
    for (std::size_t i = 0; i < 3 * rows * cols / 32; ++i) {
      scales.data += static_cast<char>(scale(static_cast<std::int64_t>(i)));
    }
    tensor(name) = blocks;
    tensors().push_back(scales);
  }
};

TEST(LoadWeights, Mxfp4ExpertsBecomeBf16) {
  Mxfp4Checkpoint checkpoint;
  const auto weights = checkpoint.load();
  const auto value = [](const ConstMatrix& matrix, std::int64_t row, std::int64_t col) {
    EXPECT_EQ(matrix.dtype, DType::kBF16);
    return bf16_to_f32(
        static_cast<const std::uint16_t*>(matrix.data)[row * matrix.row_stride + col]);
  };
  const LayerWeights& layer = weights->layers[0];
  for (std::int64_t row = 0; row < layer.up.rows; ++row) {
    for (std::int64_t col = 0; col < 64; ++col) {
      ASSERT_EQ(value(layer.up, row, col),
                Mxfp4Checkpoint::dequantized(source_of_gate_up(row), col, 64))
          << row << " " << col;
    }
  }
  for (std::int64_t row = 0; row < layer.down.rows; ++row) {
    for (std::int64_t col = 0; col < 96; ++col) {
      ASSERT_EQ(value(layer.down, row, col), Mxfp4Checkpoint::dequantized(row, col, 96));
    }
  }
  EXPECT_EQ(weights->layers[1].up.dtype, DType::kF32);
  EXPECT_TRUE(checkpoint.notes().empty());
  EXPECT_EQ(checkpoint.progress().back().first, checkpoint.progress().back().second);
}

TEST(LoadWeights, Mxfp4RefusesWhatDoesNotFit) {
  const std::string name = "model.layers.0.mlp.experts.down_proj";
  Mxfp4Checkpoint without;
  std::erase_if(without.tensors(),
                [&](const BuiltTensor& tensor) { return tensor.name == name + "_scales"; });
  expect_error(without.load_error(), "E-ST-MISSING", name + "_scales");
  Mxfp4Checkpoint other;
  other.tensor(name + "_blocks").dtype = "I8";
  expect_error(other.load_error(), "E-ST-DTYPE", "down_proj_blocks: I8, expected U8");
  Mxfp4Checkpoint shape;
  shape.tensor(name + "_scales").shape = {3, 3, 64};
  expect_error(shape.load_error(), "E-ST-SHAPE",
               "down_proj_scales: [3, 3, 64], expected [3, 64, 3] (num_local_experts, hidden_size "
               "and intermediate_size / 32 in config.json)");
  Mxfp4Checkpoint nan;
  nan.tensor(name + "_scales").data[7] = static_cast<char>(255);
  expect_error(nan.load_error(), "E-ST-NONFINITE", "down_proj_blocks: 32 values");
}

TEST(LoadWeights, NormsWithoutParametersAreOnes) {
  Checkpoint checkpoint(with(kOptConfig, "layer_norm_elementwise_affine", "false"),
                        "model.decoder.");
  const auto weights = checkpoint.load();
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(weights->final_norm[i], 1.0F);
    EXPECT_EQ(weights->layers[1].mlp_norm[i], 1.0F);
  }
  EXPECT_EQ(weights->final_norm_bias, nullptr);
}

TEST(LoadWeights, SixteenBitMatricesStayAndVectorsAreConverted) {
  Checkpoint checkpoint(kLlamaConfig, "model.");
  for (BuiltTensor& tensor : checkpoint.tensors()) {
    std::vector<std::uint16_t> bits(tensor.data.size() / 4);
    std::iota(bits.begin(), bits.end(), std::uint16_t{0x3F00});
    for (auto& value : bits) value = static_cast<std::uint16_t>(0x3F00 + (value & 0xFF));
    tensor = tensor16(tensor.name, "BF16", tensor.shape, bits);
  }
  const auto weights = checkpoint.load();
  const ConstMatrix& qkv = weights->layers[0].qkv;
  EXPECT_EQ(qkv.dtype, DType::kBF16);
  EXPECT_EQ(static_cast<const std::uint16_t*>(qkv.data)[64 * 64 + 1], 0x3F01);
  EXPECT_EQ(weights->layers[0].attention_norm[2], bf16_to_f32(0x3F02));
  EXPECT_EQ(weights->bytes, weight_bytes(checkpoint.config(), DType::kBF16));
}

TEST(LoadWeights, PartsOfMixedTypesAreConverted) {
  Checkpoint checkpoint(kLlamaConfig, "model.");
  checkpoint.tensor("model.layers.0.self_attn.k_proj.weight") =
      tensor16("model.layers.0.self_attn.k_proj.weight", "F16", {32, 64},
               std::vector<std::uint16_t>(32 * 64, 0x3800));
  checkpoint.tensor("model.layers.0.self_attn.v_proj.weight") =
      tensor16("model.layers.0.self_attn.v_proj.weight", "BF16", {32, 64},
               std::vector<std::uint16_t>(32 * 64, 0x3E80));
  const auto weights = checkpoint.load();
  const ConstMatrix& qkv = weights->layers[0].qkv;
  EXPECT_EQ(at(qkv, 64, 0), 0.5F);
  EXPECT_EQ(at(qkv, 127, 63), 0.25F);
  EXPECT_EQ(at(qkv, 0, 1),
            Checkpoint::value(checkpoint.number("model.layers.0.self_attn.q_proj.weight"), 1));
}

TEST(LoadWeights, MissingTensorsAreListedShortly) {
  Checkpoint checkpoint(kLlamaConfig, "model.");
  std::erase_if(checkpoint.tensors(), [](const BuiltTensor& tensor) {
    return tensor.name.find("layers.1") != std::string::npos;
  });
  const Error error = checkpoint.load_error();
  expect_error(error, "E-ST-MISSING", "9 missing in 1 file: model.layers.1.input_layernorm.weight");
  expect_error(error, "E-ST-MISSING", "and 4 more");
  Checkpoint nothing(kLlamaConfig, "transformer.");
  expect_error(nothing.load_error(), "E-ST-MISSING", "model.embed_tokens.weight");
}

TEST(LoadWeights, WrongShapesNameTheConfigFields) {
  Checkpoint checkpoint(kLlamaConfig, "model.");
  BuiltTensor& tensor = checkpoint.tensor("model.layers.0.self_attn.k_proj.weight");
  tensor.shape = {64, 32};
  expect_error(checkpoint.load_error(), "E-ST-SHAPE",
               "k_proj.weight: [64, 32], expected [32, 64] (num_key_value_heads * head_dim and "
               "hidden_size in config.json)");
  tensor.shape = {2048};
  expect_error(checkpoint.load_error(), "E-ST-SHAPE", "[2048], expected [32, 64]");
  tensor.shape = {0, 64};
  tensor.data.clear();
  expect_error(checkpoint.load_error(), "E-ST-SHAPE", "[0, 64]");
}

TEST(LoadWeights, UnsupportedTypesAreRefusedOnlyWhereNeeded) {
  Checkpoint checkpoint(kLlamaConfig, "model.");
  checkpoint.tensors().push_back({"extra.ids", "I64", {1}, std::string(8, '\0')});
  (void)checkpoint.load();
  checkpoint.tensor("model.norm.weight") = {
      "model.norm.weight", "F64", {64}, std::string(512, '\0')};
  expect_error(checkpoint.load_error(), "E-ST-DTYPE",
               "model.norm.weight: F64, expected F16, BF16 or F32");
}

TEST(LoadWeights, ExtraTensorsAreNotedOnce) {
  Checkpoint checkpoint(kLlamaConfig, "model.");
  const auto add = [&](const std::string& name) {
    checkpoint.tensors().push_back(f32_tensor(name, {1}, {1}));
  };
  add("model.layers.0.self_attn.rotary_emb.inv_freq");
  (void)checkpoint.load();
  EXPECT_TRUE(checkpoint.notes().empty());
  for (const char* name : {"x1", "x2", "x3", "x4", "x5", "x6"}) add(name);
  (void)checkpoint.load();
  ASSERT_EQ(checkpoint.notes().size(), 1U);
  EXPECT_NE(checkpoint.notes()[0].find("6 tensors"), std::string::npos) << checkpoint.notes()[0];
  EXPECT_NE(checkpoint.notes()[0].find("x5, ..."), std::string::npos) << checkpoint.notes()[0];
  add("model.layers.0.self_attn.q_proj.qweight");
  expect_error(checkpoint.load_error(), "E-ST-QUANT", "q_proj.qweight");
}

TEST(LoadWeights, NonFiniteWeights) {
  Checkpoint checkpoint(kLlamaConfig, "model.");
  BuiltTensor& tensor = checkpoint.tensor("model.layers.1.mlp.up_proj.weight");
  const std::uint32_t inf = 0x7F800000;
  std::memcpy(tensor.data.data() + 4 * 77, &inf, 4);
  std::memcpy(tensor.data.data() + 4 * 99, &inf, 4);
  const Error error = checkpoint.load_error();
  expect_error(error, "E-ST-NONFINITE",
               "model.layers.1.mlp.up_proj.weight: 2 values that are NaN or infinite, the first at "
               "element 77");
  EXPECT_NE(checkpoint.load({.check = WeightOptions::Check::kWarn}), nullptr);
  ASSERT_EQ(checkpoint.notes().size(), 1U);
  EXPECT_NE(checkpoint.load({.check = WeightOptions::Check::kOff}), nullptr);
  EXPECT_TRUE(checkpoint.notes().empty());
}

TEST(LoadWeights, TheFilesTypeWinsOverTheConfig) {
  Checkpoint checkpoint(with(kLlamaConfig, "torch_dtype", "\"bfloat16\""), "model.");
  EXPECT_EQ(checkpoint.load()->embedding.dtype, DType::kF32);
  ASSERT_EQ(checkpoint.notes().size(), 1U);
  EXPECT_NE(checkpoint.notes()[0].find("the files hold fp32, config.json says bf16"),
            std::string::npos)
      << checkpoint.notes()[0];
}

TEST(WeightBytes, MatchPublishedSizes) {
  EXPECT_EQ(weight_bytes(*builtin_shape("llama-2-7b"), DType::kF16),
            2 * parameter_count(*builtin_shape("llama-2-7b")) + 2 * (65 * 4096));
}

}  // namespace
}  // namespace triphase
