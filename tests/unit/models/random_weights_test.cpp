#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "memory/host_device.h"
#include "models/weights/weights.h"
#include "tests/unit/models/config_text.h"

namespace triphase {
namespace {

double element(const ConstMatrix& matrix, std::int64_t index) {
  if (matrix.dtype == DType::kF32) return static_cast<const float*>(matrix.data)[index];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(matrix.data)[index];
  return matrix.dtype == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

class RandomWeights : public testing::TestWithParam<DType> {};

TEST_P(RandomWeights, MatricesAreUniformWithVarianceOneOverIn) {
  HostDevice device;
  const ModelConfig config = parse(kLlamaConfig);
  const auto weights = random_weights(config, GetParam(), 5, device, {});
  EXPECT_EQ(weights->bytes, weight_bytes(config, GetParam()));
  for (const ConstMatrix& matrix :
       {weights->layers[0].qkv, weights->layers[1].down, weights->embedding, weights->lm_head}) {
    ASSERT_EQ(matrix.dtype, GetParam());
    const auto count = matrix.rows * matrix.cols;
    const double half_width = std::sqrt(3.0 / static_cast<double>(matrix.cols));
    double sum = 0.0;
    double squares = 0.0;
    double fourth = 0.0;
    for (std::int64_t i = 0; i < count; ++i) {
      const double value = element(matrix, i) / half_width;
      EXPECT_LE(std::abs(value), 1.01);
      sum += value;
      squares += value * value;
      fourth += value * value * value * value;
    }
    // Means of count >= 6144 draws; five standard errors of each moment of U(-1, 1).
    const double n = static_cast<double>(count);
    EXPECT_NEAR(sum / n, 0.0, 5 * std::sqrt(1.0 / 3 / n));
    EXPECT_NEAR(squares / n, 1.0 / 3, 5 * std::sqrt((1.0 / 5 - 1.0 / 9) / n));
    EXPECT_NEAR(fourth / n, 1.0 / 5, 5 * std::sqrt((1.0 / 9 - 1.0 / 25) / n));
  }
}

TEST_P(RandomWeights, AreReproducibleAndDifferBetweenSeedsAndSlots) {
  HostDevice device;
  const ModelConfig config = parse(kLlamaConfig);
  const auto first = random_weights(config, GetParam(), 5, device, {});
  const auto again = random_weights(config, GetParam(), 5, device, {});
  const auto other = random_weights(config, GetParam(), 6, device, {});
  const auto size = static_cast<std::size_t>(64 * 64) * dtype_bytes(GetParam());
  EXPECT_EQ(std::memcmp(first->layers[0].qkv.data, again->layers[0].qkv.data, size), 0);
  EXPECT_NE(std::memcmp(first->layers[0].qkv.data, other->layers[0].qkv.data, size), 0);
  EXPECT_NE(std::memcmp(first->layers[0].qkv.data, first->layers[1].qkv.data, size), 0);
  EXPECT_NE(std::memcmp(first->layers[0].qkv.data, first->layers[0].attention_out.data, size), 0);
}

INSTANTIATE_TEST_SUITE_P(Types, RandomWeights,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& tested) { return std::string(dtype_name(tested.param)); });

TEST(RandomWeightsOf, NormsAndBiases) {
  HostDevice device;
  const auto neox = random_weights(parse(kNeoxConfig), DType::kF16, 1, device, {});
  const auto gemma = random_weights(parse(kGemmaConfig), DType::kF16, 1, device, {});
  for (int i = 0; i < 48; ++i) {
    EXPECT_EQ(neox->final_norm[i], 1.0F);
    EXPECT_EQ(neox->final_norm_bias[i], 0.0F);
    EXPECT_EQ(neox->layers[1].qkv_bias[i], 0.0F);
    EXPECT_EQ(gemma->final_norm[i], 0.0F);
  }
  EXPECT_EQ(gemma->lm_head.data, gemma->embedding.data);
}

// Pieces and chunks must not show: a matrix larger than the staging buffer repeats nothing.
TEST(RandomWeightsOf, LargeMatricesDoNotRepeat) {
  HostDevice device;
  ModelConfig config =
      parse(with(with(kLlamaConfig, "vocab_size", "300000"), "num_hidden_layers", "1"));
  std::uint64_t last = 0;
  std::uint64_t total = 0;
  const auto weights =
      random_weights(config, DType::kF16, 1, device, [&](std::uint64_t done, std::uint64_t all) {
        EXPECT_GE(done, last);
        last = done;
        total = all;
      });
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, weights->bytes);
  const auto* bytes = static_cast<const char*>(weights->embedding.data);
  for (const std::size_t distance : {std::size_t{1} << 20, std::size_t{32} << 20}) {
    EXPECT_NE(std::memcmp(bytes, bytes + distance, 4096), 0);
  }
}

}  // namespace
}  // namespace triphase
