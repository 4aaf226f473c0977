#include "kernels/cuda/gemm_rows.h"
#include "kernels/cuda/gemm_tile.h"
#include "kernels/cuda/norms.h"
#include "tests/emulated/emulated_test.h"

namespace triphase::cuda {
namespace {

constexpr double kUnit = 0x1p-24;

void expect_close(const std::vector<float>& actual, const reference::Values& expected,
                  double factor, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.value.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected.value[i], factor * expected.magnitude[i] + 1e-30)
        << what << " element " << i;
  }
}

TEST(EmulatedGemm, MatchesFloat64OverTileEdges) {
  std::mt19937 random(1);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const auto& [rows, cols, depth] :
         {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 1, 1},
          {3, 65, 17},
          {64, 64, 16},
          {65, 63, 33},
          {2, 130, 40}}) {
      const std::vector<float> x = random_floats(random, rows * depth);
      const Stored w(dtype, random_floats(random, cols * depth));
      const std::vector<float> bias = random_floats(random, cols);
      for (const bool accumulate : {false, true}) {
        std::vector<float> y =
            accumulate ? random_floats(random, rows * cols) : poisoned(rows * cols);
        const ConstMatrix x_view{x.data(), DType::kF32, rows, depth, depth};
        const ConstMatrix w_view{w.data(), dtype, cols, depth, depth};
        const Matrix y_view{y.data(), DType::kF32, rows, cols, cols};
        const auto expected = reference::linear(x_view, w_view, bias.data(),
                                                accumulate ? ConstMatrix(y_view) : ConstMatrix{});
        gemm_tile(x_view, w_view, bias.data(), accumulate, y_view, nullptr);
        expect_close(y, expected, static_cast<double>(depth + 4) * kUnit, "gemm");
      }
    }
  }
}

TEST(EmulatedGemm, ARowsBitsDoNotDependOnTheRowsBesideIt) {
  std::mt19937 random(2);
  const std::vector<float> x = random_floats(random, 70 * 50);
  const std::vector<float> w = random_floats(random, 30 * 50);
  std::vector<float> all = poisoned(70 * 30);
  std::vector<float> one = poisoned(30);
  const ConstMatrix weights{w.data(), DType::kF32, 30, 50, 50};
  gemm_tile({x.data(), DType::kF32, 70, 50, 50}, weights, nullptr, false,
            {all.data(), DType::kF32, 70, 30, 30}, nullptr);
  for (const std::size_t row : {std::size_t{0}, std::size_t{5}, std::size_t{69}}) {
    gemm_tile({x.data() + row * 50, DType::kF32, 1, 50, 50}, weights, nullptr, false,
              {one.data(), DType::kF32, 1, 30, 30}, nullptr);
    EXPECT_EQ(std::memcmp(one.data(), all.data() + row * 30, 30 * sizeof(float)), 0);
  }
}

// Against float64 of the rounded x, over the edges of tiles, and where the device says how many
// rows there are.
TEST(EmulatedGemmRows, MatchesFloat64AndStopsWhereTheDeviceSays) {
  std::mt19937 random(4);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const auto& [rows, cols, depth] :
         {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 1, 8},
          {17, 66, 40},
          {133, 64, 160},
          {130, 130, 32},
          {5, 20, 13}}) {  // no whole vectors: on CUDA cores
      const std::vector<float> x = random_floats(random, rows * depth);
      const Stored w(dtype, random_floats(random, cols * depth));
      const std::vector<float> bias = random_floats(random, cols);
      const ConstMatrix w_view{w.data(), dtype, cols, depth, depth};
      const Stored rounded(depth % 8 == 0 ? dtype : DType::kF32, x);
      const auto expected = reference::linear({rounded.data(), rounded.dtype(), rows, depth, depth},
                                              w_view, bias.data(), ConstMatrix{});
      const ConstMatrix x_view{x.data(), DType::kF32, rows, depth, depth};
      std::vector<float> y = poisoned(rows * cols);
      gemm_rows(x_view, w_view, bias.data(), {}, {y.data(), DType::kF32, rows, cols, cols},
                nullptr);
      expect_close(y, expected, static_cast<double>(depth + 4) * kUnit, "gemm");
      for (const std::int32_t there : {0, 1, 16, 17, 129}) {
        const std::vector<std::int32_t> count{50 + there};  // these rows lie behind fifty others
        std::vector<float> some = poisoned(rows * cols);
        gemm_rows(x_view, w_view, bias.data(), {count.data(), 50},
                  {some.data(), DType::kF32, rows, cols, cols}, nullptr);
        const auto written = static_cast<std::size_t>(std::min<std::int64_t>(there, rows) * cols);
        EXPECT_EQ(std::memcmp(some.data(), y.data(), written * sizeof(float)), 0);
        for (std::size_t i = written; i < some.size(); ++i) ASSERT_TRUE(std::isnan(some[i]));
      }
      const std::size_t last = static_cast<std::size_t>(rows) - 1;
      std::vector<float> one = poisoned(cols);
      gemm_rows({x.data() + last * static_cast<std::size_t>(depth), DType::kF32, 1, depth, depth},
                w_view, bias.data(), {}, {one.data(), DType::kF32, 1, cols, cols}, nullptr);
      EXPECT_EQ(std::memcmp(one.data(), y.data() + last * static_cast<std::size_t>(cols),
                            one.size() * sizeof(float)),
                0)
          << "a row's bits depend on the rows beside it";
    }
  }
}

TEST(EmulatedNorms, MatchFloat64) {
  std::mt19937 random(3);
  for (const std::int64_t cols : {1, 255, 256, 1000}) {
    std::vector<float> x = random_floats(random, 3 * cols);
    for (float& value : x) value += 5.0F;  // a mean that is not near zero
    const std::vector<float> weight = random_floats(random, cols);
    const std::vector<float> bias = random_floats(random, cols);
    const ConstMatrix view{x.data(), DType::kF32, 3, cols, cols};
    std::vector<float> y = poisoned(3 * cols);
    const double factor = static_cast<double>(cols + 12) * kUnit;
    rms_norm(view, weight.data(), 1.0F, 1e-5F, {y.data(), DType::kF32, 3, cols, cols}, nullptr);
    expect_close(y, reference::rms_norm(view, weight.data(), 1.0F, 1e-5F), factor, "rms_norm");
    std::vector<float> heads = x;
    head_norm({heads.data(), DType::kF32, 1, 3 * cols, 3 * cols}, 3, weight.data(), 1.0F, 1e-5F,
              nullptr);
    EXPECT_EQ(std::memcmp(heads.data(), y.data(), y.size() * sizeof(float)), 0) << "head_norm";
    std::vector<float> sum = x;
    add_rms_norm(view, weight.data(), 1.0F, 1e-5F, {sum.data(), DType::kF32, 3, cols, cols},
                 nullptr);
    for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], x[i] + y[i]) << "add_rms_norm";
    layer_norm(view, weight.data(), bias.data(), 1e-5F, {y.data(), DType::kF32, 3, cols, cols},
               nullptr);
    expect_close(y, reference::layer_norm(view, weight.data(), bias.data(), 1e-5F), factor,
                 "layer_norm");
  }
}

}  // namespace
}  // namespace triphase::cuda
