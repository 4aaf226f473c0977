#include "kernels/cuda/gemm_rows.h"
#include "kernels/cuda/gemm_tile.h"
#include "kernels/cuda/norms.h"
#include "tests/emulated/emulated_test.h"

namespace triphase::cuda {
namespace {

TEST(EmulatedGemm, MatchesFloat64OverTileEdges) {
  std::mt19937 random(1);
  for (const DType dtype : kStoredTypes) {
    for (const auto& [rows, cols, depth] :
         {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 1, 1},
          {3, 65, 17},
          {64, 64, 16},
          {65, 63, 33},
          {2, 130, 40}}) {
      const TestMatrix x = TestMatrix(rows, depth).randomize(random);
      const TestMatrix w = TestMatrix(cols, depth, 0, dtype).randomize(random);
      const TestMatrix bias = TestMatrix(1, cols).randomize(random);
      for (const bool accumulate : {false, true}) {
        TestMatrix y(rows, cols);
        if (accumulate) y.randomize(random);
        const auto expected =
            reference::linear(x.view(), w.view(), bias.floats(), accumulate ? y.view() : Matrix{});
        gemm_tile(x.view(), w.view(), bias.floats(), accumulate, y.view(), nullptr);
        expect_close(y, expected, tolerance::dot(depth), "gemm");
      }
    }
  }
}

TEST(EmulatedGemm, ARowsBitsDoNotDependOnTheRowsBesideIt) {
  std::mt19937 random(2);
  const TestMatrix x = TestMatrix(70, 50).randomize(random);
  const TestMatrix w = TestMatrix(30, 50).randomize(random);
  TestMatrix all(70, 30);
  TestMatrix one(1, 30);
  gemm_tile(x.view(), w.view(), nullptr, false, all.view(), nullptr);
  for (const std::int64_t row : {0, 5, 69}) {
    gemm_tile(x.view(row, 1), w.view(), nullptr, false, one.view(), nullptr);
    EXPECT_TRUE(same_bits(one.row(0), all.row(row)));
  }
}

// Against float64 of the rounded x, over the edges of tiles, and where the device says how many
// rows there are.
TEST(EmulatedGemmRows, MatchesFloat64AndStopsWhereTheDeviceSays) {
  std::mt19937 random(4);
  for (const DType dtype : kStoredTypes) {
    for (const auto& [rows, cols, depth] :
         {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 1, 8},
          {17, 66, 40},
          {133, 64, 160},
          {130, 130, 32},
          {5, 20, 13}}) {  // no whole vectors: on CUDA cores
      const TestMatrix x = TestMatrix(rows, depth).randomize(random);
      const TestMatrix w = TestMatrix(cols, depth, 0, dtype).randomize(random);
      const TestMatrix bias = TestMatrix(1, cols).randomize(random);
      const TestMatrix rounded = x.as(depth % 8 == 0 ? dtype : DType::kF32);
      TestMatrix y(rows, cols);
      gemm_rows(x.view(), w.view(), bias.floats(), {}, y.view(), nullptr);
      expect_close(y, reference::linear(rounded.view(), w.view(), bias.floats(), {}),
                   tolerance::dot(depth), "gemm");
      for (const std::int32_t there : {0, 1, 16, 17, 129}) {
        const std::vector<std::int32_t> count{50 + there};  // these rows lie behind fifty others
        TestMatrix some(rows, cols);
        gemm_rows(x.view(), w.view(), bias.floats(), {count.data(), 50}, some.view(), nullptr);
        const TestMatrix untouched(1, cols);
        for (std::int64_t row = 0; row < rows; ++row) {
          ASSERT_TRUE(same_bits(some.row(row), row < there ? y.row(row) : untouched.row(0))) << row;
        }
      }
      TestMatrix one(1, cols);
      gemm_rows(x.view(rows - 1, 1), w.view(), bias.floats(), {}, one.view(), nullptr);
      EXPECT_TRUE(same_bits(one.row(0), y.row(rows - 1)))
          << "a row's bits depend on the rows beside it";
    }
  }
}

TEST(EmulatedNorms, MatchFloat64) {
  std::mt19937 random(3);
  for (const std::int64_t cols : {1, 255, 256, 1000}) {
    TestMatrix x = TestMatrix(3, cols).randomize(random);
    for (std::int64_t i = 0; i < 3 * cols; ++i) {
      x.set(i / cols, i % cols, x.at(i / cols, i % cols) + 5.0F);  // a mean that is not near zero
    }
    const TestMatrix weight = TestMatrix(1, cols).randomize(random);
    const TestMatrix bias = TestMatrix(1, cols).randomize(random);
    TestMatrix y(3, cols);
    rms_norm(x.view(), weight.floats(), 1.0F, 1e-5F, y.view(), nullptr);
    expect_close(y, reference::rms_norm(x.view(), weight.floats(), 1.0F, 1e-5F),
                 tolerance::norm(cols), "rms_norm");
    TestMatrix heads = x;
    Matrix side_by_side = heads.view();
    side_by_side.rows = 1;
    side_by_side.cols = side_by_side.row_stride = 3 * cols;
    head_norm(side_by_side, 3, weight.floats(), 1.0F, 1e-5F, nullptr);
    TestMatrix sum = x;
    add_rms_norm(x.view(), weight.floats(), 1.0F, 1e-5F, sum.view(), nullptr);
    for (std::int64_t row = 0; row < 3; ++row) {
      EXPECT_TRUE(same_bits(heads.row(row), y.row(row))) << "head_norm";
      for (std::int64_t c = 0; c < cols; ++c) {
        ASSERT_EQ(sum.at(row, c), x.at(row, c) + y.at(row, c)) << "add_rms_norm";
      }
    }
    layer_norm(x.view(), weight.floats(), bias.floats(), 1e-5F, y.view(), nullptr);
    expect_close(y, reference::layer_norm(x.view(), weight.floats(), bias.floats(), 1e-5F),
                 tolerance::norm(cols), "layer_norm");
  }
}

}  // namespace
}  // namespace triphase::cuda
