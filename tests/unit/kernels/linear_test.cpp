#include "tests/unit/kernels/kernel_test.h"

namespace triphase {
namespace {

class LinearTest : public KernelTest {
 protected:
  [[nodiscard]] TestMatrix run(Ops& ops, const TestMatrix& x, const TestMatrix& w,
                               const float* bias) {
    TestMatrix y(x.rows(), w.rows(), 3);
    ops.linear(x.view(), w.view(), bias, false, y.view(), *stream_);
    return y;
  }
};

TEST_P(LinearTest, MatchesReferenceAroundTileEdges) {
  for (const DType dtype : kStoredTypes) {
    for (const std::int64_t rows : {1, 2, 5, 6, 7, 12, 13, 49}) {
      for (const std::int64_t cols : {1, 3, 4, 5, 16, 19, 64}) {
        for (const std::int64_t depth : {1, 7, 16, 33, 512, 517}) {
          if (rows * cols * depth > 100000 && dtype == DType::kBF16) continue;
          const TestMatrix x = TestMatrix(rows, depth, 2).randomize(random_);
          const TestMatrix w = TestMatrix(cols, depth, 5, dtype).randomize(random_);
          const TestMatrix bias = TestMatrix(1, cols).randomize(random_);
          const std::string what = std::string(dtype_name(dtype)) + " M=" + std::to_string(rows) +
                                   " N=" + std::to_string(cols) + " K=" + std::to_string(depth);
          expect_close(run(*ops_, x, w, bias.floats()),
                       reference::linear(x.view(), w.view(), bias.floats(), {}),
                       tolerance::dot(depth), what);
        }
      }
    }
  }
}

TEST_P(LinearTest, WithoutBiasAndAccumulating) {
  const TestMatrix x = TestMatrix(15, 70, 1).randomize(random_);
  const TestMatrix w = TestMatrix(21, 70, 1, DType::kF16).randomize(random_);
  expect_close(run(*ops_, x, w, nullptr), reference::linear(x.view(), w.view(), nullptr, {}),
               tolerance::dot(70), "no bias");
  TestMatrix y = TestMatrix(15, 21, 4).randomize(random_);
  const TestMatrix before = y;
  const TestMatrix bias = TestMatrix(1, 21).randomize(random_);
  ops_->linear(x.view(), w.view(), bias.floats(), true, y.view(), *stream_);
  expect_close(y, reference::linear(x.view(), w.view(), bias.floats(), before.view()),
               tolerance::dot(70), "accumulate");
}

TEST_P(LinearTest, RowsDoNotDependOnNeighboursOrThreads) {
  for (const DType dtype : kStoredTypes) {
    for (const std::int64_t depth : {40, 1030, 2080}) {
      const TestMatrix x = TestMatrix(150, depth, 1).randomize(random_);
      const TestMatrix w = TestMatrix(depth == 2080 ? 96 : 37, depth, 1, dtype).randomize(random_);
      const TestMatrix all = run(*ops_, x, w, nullptr);
      for (const std::int64_t rows : {1, 2, 3, 5, 6, 9, 12, 13, 48, 50}) {
        for (std::int64_t first = 0; first < x.rows(); first += rows) {
          const std::int64_t count = std::min(rows, x.rows() - first);
          TestMatrix part(count, w.rows());
          ops_->linear(x.view(first, count), w.view(), nullptr, false, part.view(), *stream_);
          for (std::int64_t row = 0; row < count; ++row) {
            ASSERT_TRUE(same_bits(part.row(row), all.row(first + row)))
                << dtype_name(dtype) << " row " << first + row << " in a call of " << count;
          }
        }
      }
      for (const int threads : {1, 3}) {
        ThreadPool pool(threads);
        const TestMatrix other = run(*make_cpu_ops(pool), x, w, nullptr);
        for (std::int64_t row = 0; row < x.rows(); ++row) {
          ASSERT_TRUE(same_bits(other.row(row), all.row(row))) << threads << " threads";
        }
      }
    }
  }
}

TEST_P(LinearTest, NanStaysInItsRowAndEmptyShapesWork) {
  TestMatrix x = TestMatrix(20, 33, 1).randomize(random_);
  const TestMatrix w = TestMatrix(9, 33, 1, DType::kBF16).randomize(random_);
  x.set(4, 32, std::numeric_limits<float>::quiet_NaN());
  x.set(7, 3, std::numeric_limits<float>::infinity());
  x.set(8, 3, std::numeric_limits<float>::max() / 64.0F);
  const TestMatrix y = run(*ops_, x, w, nullptr);
  for (std::int64_t row = 0; row < 20; ++row) {
    for (std::int64_t col = 0; col < 9; ++col) {
      EXPECT_EQ(std::isnan(y.at(row, col)), row == 4) << row << " " << col;
      EXPECT_EQ(std::isinf(y.at(row, col)), row == 7) << row << " " << col;
    }
  }
  TestMatrix none(0, 9);
  ops_->linear(TestMatrix(0, 33).view(), w.view(), nullptr, false, none.view(), *stream_);
  for (const std::int64_t rows : {2, 20}) {
    const TestMatrix zeros =
        run(*ops_, TestMatrix(rows, 0, 1), TestMatrix(9, 0, 1, DType::kF16), nullptr);
    const TestMatrix tiles =
        run(*ops_, TestMatrix(rows, 0, 1), TestMatrix(32, 0, 0, DType::kBF16), nullptr);
    for (std::int64_t row = 0; row < rows; ++row) {
      EXPECT_THAT(zeros.row(row), testing::Each(0.0F));
      EXPECT_THAT(tiles.row(row), testing::Each(0.0F));
    }
  }
}

TEST_P(LinearTest, RefusesMismatchedShapes) {
  const TestMatrix x(2, 8), w(3, 9);
  TestMatrix y(2, 3);
  EXPECT_THROW(ops_->linear(x.view(), w.view(), nullptr, false, y.view(), *stream_), Error);
  const TestMatrix bytes(3, 8, 0, DType::kF16);
  ConstMatrix as_int = bytes.view();
  as_int.dtype = DType::kI32;
  EXPECT_THROW(ops_->linear(x.view(), as_int, nullptr, false, y.view(), *stream_), Error);
}

TEST_P(LinearTest, NameSaysTheTarget) {
  EXPECT_EQ(ops_->name(), "cpu (" + std::string(GetParam()) + ")");
}

TRIPHASE_KERNEL_TARGETS(LinearTest);
INSTANTIATE_TEST_SUITE_P(Tiles, LinearTest, testing::Values("amx"),
                         [](const auto& test) { return std::string(test.param); });

TEST(SimdTarget, RefusesUnknownNames) {
  EXPECT_THROW(cpu::use_simd_target("avx9000"), Error);
  EXPECT_FALSE(cpu::use_simd_target("").empty());
}

}  // namespace
}  // namespace triphase
