#include "kernels/cuda/pointwise.h"

#include "tests/emulated/emulated_test.h"

namespace triphase::cuda {
namespace {

constexpr std::int64_t kPad = 3;

TEST(EmulatedPointwise, SoftCap) {
  std::mt19937 random(6);
  for (const float cap : {0.5F, 30.0F}) {
    TestMatrix y = TestMatrix(3, 300, kPad).randomize(random, 40.0F);
    const TestMatrix x = y;
    soft_cap(cap, y.view(), nullptr);
    for (std::int64_t r = 0; r < y.rows(); ++r) {
      for (std::int64_t c = 0; c < y.cols(); ++c) {
        ASSERT_NEAR(y.at(r, c), cap * std::tanh(static_cast<double>(x.at(r, c)) / cap), 3e-7 * cap);
      }
    }
    EXPECT_TRUE(y.padding_is_poisoned());
  }
}

TEST(EmulatedPointwise, TablesAreGatheredScaledAndAdded) {
  std::mt19937 random(1);
  for (const DType dtype : kStoredTypes) {
    for (const std::int64_t cols : {1, 31, 256, 257}) {
      const TestMatrix table = TestMatrix(9, cols, 0, dtype).randomize(random);
      const std::vector<std::int32_t> rows = {8, 0, 3, 3, 7};
      TestMatrix y = TestMatrix(5, cols, kPad).randomize(random);
      const auto expected = reference::add_positions(rows, table.view(), y.view());
      TestMatrix embedded(5, cols, kPad);
      gather_table(rows.data(), table.view(), 0.5F, false, embedded.view(), nullptr);
      expect_close(embedded, reference::embed(rows, table.view(), 0.5F), 2 * tolerance::kUnit,
                   "embed");
      gather_table(rows.data(), table.view(), 1.0F, true, y.view(), nullptr);
      expect_close(y, expected, 2 * tolerance::kUnit, "positions");
    }
  }
}

TEST(EmulatedPointwise, RopeRotatesEveryHeadAndLeavesTheRest) {
  std::mt19937 random(2);
  for (const std::int64_t rotary : {0, 2, 24, 80}) {
    TestMatrix x = TestMatrix(4, 3 * 80, kPad).randomize(random);
    const TestMatrix angles = TestMatrix(4, rotary, kPad).randomize(random);
    const auto expected = reference::rope(x.view(), 3, 80, rotary, angles.view());
    rope(x.view(), 3, 80, rotary, angles.view(), nullptr);
    expect_close(x, expected, tolerance::kRotation, "rope");
  }
}

TEST(EmulatedPointwise, ActivationsAndSums) {
  std::mt19937 random(3);
  for (const Activation activation :
       {Activation::kRelu, Activation::kGeluErf, Activation::kGeluTanh, Activation::kSilu,
        Activation::kSwigluOai}) {
    TestMatrix gate = TestMatrix(3, 300, kPad).randomize(random);
    const TestMatrix up = TestMatrix(3, 300, kPad).randomize(random);
    const auto gated = reference::gated_activation(activation, gate.view(), up.view());
    const auto plain = reference::activate(activation, gate.view());
    TestMatrix y(3, 300, kPad);
    activate(activation, gate.view(), up.view(), y.view(), nullptr);
    expect_close(y, gated, tolerance::kActivation, "gated");
    activate(activation, gate.view(), {}, gate.view(), nullptr);
    expect_close(gate, plain, tolerance::kActivation, "activate in place");
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
    const TestMatrix x = TestMatrix(3, 77, kPad).randomize(random);
    TestMatrix y(3, 80, 0, dtype);
    convert(x.view(), y.view(), nullptr);
    for (std::int64_t r = 0; r < 3; ++r) {
      for (std::int64_t c = 0; c < 80; ++c) {
        Elements one(dtype, 1);
        one.set(0, c < 77 ? x.at(r, c) : 0.0F);
        ASSERT_EQ(reference::element(y.view(), r, c), one.at(0));
      }
    }
  }
}

}  // namespace
}  // namespace triphase::cuda
