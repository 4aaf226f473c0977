#include "kernels/cuda/pointwise.h"

#include "tests/emulated/emulated_test.h"

namespace triphase::cuda {
namespace {

constexpr std::int64_t kPad = 3;

// Rows of `cols` values with kPad poisoned columns behind each.
struct Padded {
  Padded(std::mt19937& random, std::int64_t row_count, std::int64_t col_count)
      : rows(row_count), cols(col_count), values(poisoned(row_count * (col_count + kPad))) {
    std::normal_distribution<float> normal;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) at(r, c) = normal(random);
    }
  }
  float& at(std::int64_t r, std::int64_t c) {
    return values[static_cast<std::size_t>(r * (cols + kPad) + c)];
  }
  Matrix view() { return {values.data(), DType::kF32, rows, cols, cols + kPad}; }
  bool padding_untouched() {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = cols; c < cols + kPad; ++c) {
        if (!std::isnan(at(r, c))) return false;
      }
    }
    return true;
  }
  std::int64_t rows, cols;
  std::vector<float> values;
};

void expect_close(Padded& actual, const reference::Values& expected, double factor,
                  const char* what) {
  for (std::int64_t r = 0; r < actual.rows; ++r) {
    for (std::int64_t c = 0; c < actual.cols; ++c) {
      const auto i = static_cast<std::size_t>(r * actual.cols + c);
      ASSERT_NEAR(actual.at(r, c), expected.value[i], factor * expected.magnitude[i] + 1e-30)
          << what << " row " << r << " column " << c;
    }
  }
  EXPECT_TRUE(actual.padding_untouched()) << what;
}

constexpr double kUnit = 0x1p-24;

TEST(EmulatedPointwise, SoftCap) {
  std::mt19937 random(6);
  for (const float cap : {0.5F, 30.0F}) {
    Padded y(random, 3, 300);
    for (float& value : y.values) value *= 40.0F;
    Padded x = y;
    soft_cap(cap, y.view(), nullptr);
    for (std::int64_t r = 0; r < y.rows; ++r) {
      for (std::int64_t c = 0; c < y.cols; ++c) {
        ASSERT_NEAR(y.at(r, c), cap * std::tanh(static_cast<double>(x.at(r, c)) / cap), 3e-7 * cap);
      }
    }
    EXPECT_TRUE(y.padding_untouched());
  }
}

TEST(EmulatedPointwise, TablesAreGatheredScaledAndAdded) {
  std::mt19937 random(1);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const std::int64_t cols : {1, 31, 256, 257}) {
      const Stored table(dtype, random_floats(random, 9 * cols));
      const std::vector<std::int32_t> rows = {8, 0, 3, 3, 7};
      Padded y(random, 5, cols);
      const Padded before = y;
      const ConstMatrix view{table.data(), dtype, 9, cols, cols};
      gather_table(rows.data(), view, 0.5F, false, y.view(), nullptr);
      expect_close(y, reference::embed(rows, view, 0.5F), 2 * kUnit, "embed");
      y = before;
      const auto expected = reference::add_positions(rows, view, y.view());
      gather_table(rows.data(), view, 1.0F, true, y.view(), nullptr);
      expect_close(y, expected, 2 * kUnit, "positions");
    }
  }
}

TEST(EmulatedPointwise, RopeRotatesEveryHeadAndLeavesTheRest) {
  std::mt19937 random(2);
  for (const std::int64_t rotary : {0, 2, 24, 80}) {
    Padded x(random, 4, 3 * 80);
    Padded angles(random, 4, rotary);
    const auto expected = reference::rope(x.view(), 3, 80, rotary, angles.view());
    rope(x.view(), 3, 80, rotary, angles.view(), nullptr);
    expect_close(x, expected, 3 * kUnit, "rope");
  }
}

TEST(EmulatedPointwise, ActivationsAndSums) {
  std::mt19937 random(3);
  for (const Activation activation :
       {Activation::kRelu, Activation::kGeluErf, Activation::kGeluTanh, Activation::kSilu,
        Activation::kSwigluOai}) {
    Padded gate(random, 3, 300);
    Padded up(random, 3, 300);
    const auto gated = reference::gated_activation(activation, gate.view(), up.view());
    const auto plain = reference::activate(activation, gate.view());
    Padded y(random, 3, 300);
    activate(activation, gate.view(), up.view(), y.view(), nullptr);
    expect_close(y, gated, 18 * kUnit, "gated");
    activate(activation, gate.view(), {}, gate.view(), nullptr);
    expect_close(gate, plain, 18 * kUnit, "activate in place");
  }
}

TEST(EmulatedPointwise, ReluKeepsNan) {
  std::vector<float> y = {std::nanf(""), -1.0F, 2.0F};
  const Matrix view{y.data(), DType::kF32, 1, 3, 3};
  activate(Activation::kRelu, view, {}, view, nullptr);
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[1], 0.0F);
  EXPECT_EQ(y[2], 2.0F);
}

TEST(EmulatedPointwise, ConversionRoundsToNearestEvenAndPadsWithZero) {
  std::mt19937 random(4);
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    Padded x(random, 3, 77);
    Stored y(dtype, 3 * 80);
    convert(x.view(), {y.data(), dtype, 3, 80, 80}, nullptr);
    for (std::int64_t r = 0; r < 3; ++r) {
      for (std::int64_t c = 0; c < 80; ++c) {
        Stored one(dtype, 1);
        one.set(0, c < 77 ? x.at(r, c) : 0.0F);
        ASSERT_EQ(y.at(r * 80 + c), one.at(0));
      }
    }
  }
}

}  // namespace
}  // namespace triphase::cuda
