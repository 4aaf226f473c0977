#include "kernels/cpu/cpu_kernels.h"
#include "tests/unit/kernels/kernel_test.h"

namespace triphase {
namespace {

constexpr Activation kActivations[] = {Activation::kRelu, Activation::kGeluErf,
                                       Activation::kGeluTanh, Activation::kSilu};
constexpr std::int64_t kWidths[] = {1, 3, 4, 15, 16, 17, 64, 100, 1000};

class PointwiseTest : public KernelTest {};

TEST_P(PointwiseTest, RmsNorm) {
  for (const std::int64_t cols : kWidths) {
    TestMatrix x = TestMatrix(5, cols, 3).randomize(random_, 3.0F);
    const TestMatrix weight = TestMatrix(1, cols).randomize(random_);
    for (const float offset : {0.0F, 1.0F}) {
      const reference::Values expected =
          reference::rms_norm(x.view(), weight.floats(), offset, 1e-5F);
      TestMatrix y(5, cols, 2);
      ops_->rms_norm(std::as_const(x).view(), weight.floats(), offset, 1e-5F, y.view(), *stream_);
      expect_close(y, expected, tolerance::norm(cols), "cols " + std::to_string(cols));
      TestMatrix aliased = x;
      ops_->rms_norm(aliased.view(), weight.floats(), offset, 1e-5F, aliased.view(), *stream_);
      for (std::int64_t row = 0; row < 5; ++row)
        EXPECT_TRUE(same_bits(aliased.row(row), y.row(row)));
    }
  }
}

TEST_P(PointwiseTest, AddRmsNorm) {
  for (const std::int64_t cols : kWidths) {
    const TestMatrix x = TestMatrix(5, cols, 3).randomize(random_, 3.0F);
    const TestMatrix weight = TestMatrix(1, cols).randomize(random_);
    TestMatrix y = TestMatrix(5, cols, 2).randomize(random_, 3.0F);
    TestMatrix norm(5, cols, 1);
    ops_->rms_norm(x.view(), weight.floats(), 1.0F, 1e-5F, norm.view(), *stream_);
    std::vector<std::vector<float>> expected;
    for (std::int64_t row = 0; row < 5; ++row) {
      expected.push_back(y.row(row));
      for (std::size_t c = 0; c < expected.back().size(); ++c) {
        expected.back()[c] += norm.row(row)[c];
      }
    }
    ops_->add_rms_norm(x.view(), weight.floats(), 1.0F, 1e-5F, y.view(), *stream_);
    for (std::int64_t row = 0; row < 5; ++row) {
      EXPECT_TRUE(same_bits(y.row(row), expected[static_cast<std::size_t>(row)])) << cols;
    }
  }
}

TEST_P(PointwiseTest, HeadNormIsTheRmsNormOfEachPart) {
  constexpr std::int64_t kHeads = 3;
  for (const std::int64_t width : kWidths) {
    TestMatrix x = TestMatrix(5, kHeads * width, 4).randomize(random_, 3.0F);
    const TestMatrix weight = TestMatrix(1, width).randomize(random_);
    TestMatrix expected = x;
    ops_->head_norm(x.view(), kHeads, weight.floats(), 1.0F, 1e-5F, *stream_);
    for (std::int64_t head = 0; head < kHeads; ++head) {
      Matrix part = expected.view();
      part.data = static_cast<float*>(part.data) + head * width;
      part.cols = width;
      ops_->rms_norm(part, weight.floats(), 1.0F, 1e-5F, part, *stream_);
    }
    for (std::int64_t row = 0; row < 5; ++row) {
      EXPECT_TRUE(same_bits(x.row(row), expected.row(row))) << "width " << width;
    }
  }
}

TEST_P(PointwiseTest, LayerNorm) {
  for (const std::int64_t cols : kWidths) {
    TestMatrix x = TestMatrix(5, cols, 3).randomize(random_, 3.0F);
    const TestMatrix weight = TestMatrix(1, cols).randomize(random_);
    const TestMatrix bias = TestMatrix(1, cols).randomize(random_);
    for (const float* b : {bias.floats(), static_cast<const float*>(nullptr)}) {
      const reference::Values expected = reference::layer_norm(x.view(), weight.floats(), b, 1e-3F);
      TestMatrix y(5, cols, 2);
      ops_->layer_norm(std::as_const(x).view(), weight.floats(), b, 1e-3F, y.view(), *stream_);
      // The variance of few columns may be small beside eps; its error then counts less.
      expect_close(y, expected, tolerance::norm(cols), "cols " + std::to_string(cols));
      TestMatrix aliased = x;
      ops_->layer_norm(aliased.view(), weight.floats(), b, 1e-3F, aliased.view(), *stream_);
      for (std::int64_t row = 0; row < 5; ++row)
        EXPECT_TRUE(same_bits(aliased.row(row), y.row(row)));
    }
  }
}

TEST_P(PointwiseTest, Rope) {
  for (const std::int64_t head_dim : {2, 20, 64, 80}) {
    for (const std::int64_t rotary : {head_dim, head_dim / 4 * 2, std::int64_t{0}}) {
      TestMatrix x = TestMatrix(4, 3 * head_dim, 5).randomize(random_);
      const TestMatrix angles = TestMatrix(4, rotary, 1).randomize(random_);
      const reference::Values expected =
          reference::rope(x.view(), 3, head_dim, rotary, angles.view());
      ops_->rope(x.view(), 3, head_dim, rotary, angles.view(), *stream_);
      expect_close(x, expected, tolerance::kRotation,
                   "dim " + std::to_string(head_dim) + " rotary " + std::to_string(rotary));
    }
  }
}

TEST_P(PointwiseTest, SoftCap) {
  for (const float cap : {0.5F, 30.0F}) {
    TestMatrix y = TestMatrix(4, 100, 3).randomize(random_, 40.0F);
    const TestMatrix x = y;
    ops_->soft_cap(cap, y.view(), *stream_);
    for (std::int64_t row = 0; row < 4; ++row) {
      for (std::int64_t c = 0; c < 100; ++c) {
        const double expected = cap * std::tanh(static_cast<double>(x.at(row, c)) / cap);
        ASSERT_NEAR(y.at(row, c), expected, 3e-7 * cap);
      }
    }
  }
}

TEST_P(PointwiseTest, Activations) {
  std::vector kinds(std::begin(kActivations), std::end(kActivations));
  kinds.push_back(Activation::kSwigluOai);
  for (const Activation kind : kinds) {
    for (const std::int64_t cols : kWidths) {
      TestMatrix gate = TestMatrix(4, cols, 3).randomize(random_, 4.0F);
      const TestMatrix up = TestMatrix(4, cols, 1).randomize(random_, 4.0F);
      for (std::int64_t c = 0; c < cols; ++c) {
        gate.set(3, c, static_cast<float>(c - cols / 2) * 0.7F);
      }
      const reference::Values gated = reference::gated_activation(kind, gate.view(), up.view());
      TestMatrix y(4, cols, 2);
      ops_->gated_activation(kind, std::as_const(gate).view(), up.view(), y.view(), *stream_);
      expect_close(y, gated, tolerance::kActivation, "gated cols " + std::to_string(cols));
      const reference::Values plain = reference::activate(kind, gate.view());
      TestMatrix aliased = gate;
      ops_->gated_activation(kind, aliased.view(), up.view(), aliased.view(), *stream_);
      for (std::int64_t row = 0; row < 4; ++row)
        EXPECT_TRUE(same_bits(aliased.row(row), y.row(row)));
      ops_->activate(kind, gate.view(), *stream_);
      expect_close(gate, plain, tolerance::kActivation, "plain cols " + std::to_string(cols));
    }
  }
}

TEST_P(PointwiseTest, ActivationsOfExtremesAndNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Activation kind : kActivations) {
    TestMatrix y(1, 5);
    y.set(0, 0, std::numeric_limits<float>::quiet_NaN());
    y.set(0, 1, 3e38F);
    y.set(0, 2, -3e38F);
    y.set(0, 3, infinity);
    y.set(0, 4, 0.0F);
    ops_->activate(kind, y.view(), *stream_);
    EXPECT_TRUE(std::isnan(y.at(0, 0)));
    EXPECT_EQ(y.at(0, 1), 3e38F);
    EXPECT_EQ(y.at(0, 2), 0.0F);
    EXPECT_EQ(y.at(0, 3), infinity);
    EXPECT_EQ(y.at(0, 4), 0.0F);
  }
}

TEST_P(PointwiseTest, ClampedActivationOfExtremesAndNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto swiglu = [&](float gate, float up) {
    TestMatrix x(1, 1);
    TestMatrix y(1, 1);
    x.set(0, 0, gate);
    y.set(0, 0, up);
    ops_->gated_activation(Activation::kSwigluOai, x.view(), y.view(), x.view(), *stream_);
    return x.at(0, 0);
  };
  EXPECT_EQ(swiglu(infinity, infinity), swiglu(7.0F, 7.0F));
  EXPECT_EQ(swiglu(8.0F, -infinity), swiglu(7.0F, -7.0F));
  EXPECT_NEAR(swiglu(8.0F, 9.0F), 7.0 / (1.0 + std::exp(-1.702 * 7.0)) * 8.0, 1e-5);
  EXPECT_EQ(swiglu(-3e38F, 1.0F), 0.0F);
  EXPECT_EQ(swiglu(2.0F, -1.0F), 0.0F);
  EXPECT_TRUE(std::isnan(swiglu(nan, 1.0F)));
  EXPECT_TRUE(std::isnan(swiglu(1.0F, nan)));
}

TEST_P(PointwiseTest, Gather) {
  for (const std::int64_t cols : kWidths) {
    const TestMatrix x = TestMatrix(6, cols, 3).randomize(random_);
    const std::vector<std::int32_t> rows = {5, 0, 0, 3};
    TestMatrix picked(4, cols, 2);
    ops_->gather_rows(x.view(), rows, picked.view(), *stream_);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_TRUE(same_bits(picked.row(static_cast<std::int64_t>(i)), x.row(rows[i])));
    }
    EXPECT_TRUE(picked.padding_is_poisoned());
    const std::vector<std::int32_t> outside = {0, 6, 0, 0};
    EXPECT_THROW(ops_->gather_rows(x.view(), outside, picked.view(), *stream_), Error);
  }
}

TEST_P(PointwiseTest, SumRows) {
  for (const std::int64_t cols : kWidths) {
    const TestMatrix x = TestMatrix(6, cols, 3).randomize(random_);
    const TestMatrix before = TestMatrix(2, cols, 2).randomize(random_);
    const std::vector<std::int32_t> rows = {5, 0, 2, 3, 3, 1};
    const std::vector<float> factors = {0.5F, 0.25F, -1.5F, 1.0F, 2.0F, 0.125F};
    for (const bool accumulate : {false, true}) {
      reference::Values expected;
      for (std::size_t row = 0; row < 2; ++row) {
        for (std::int64_t col = 0; col < cols; ++col) {
          const double old = accumulate ? before.at(static_cast<std::int64_t>(row), col) : 0.0;
          double sum = old;
          double magnitude = std::abs(old);
          for (std::size_t i = 3 * row; i < 3 * row + 3; ++i) {
            const double term = static_cast<double>(factors[i]) * x.at(rows[i], col);
            sum += term;
            magnitude += std::abs(term);
          }
          expected.value.push_back(sum);
          expected.magnitude.push_back(magnitude);
        }
      }
      TestMatrix y = before;
      cpu::sum_rows(pool_, x.view(), rows, factors, accumulate, y.view());
      expect_close(y, expected, tolerance::dot(3), "cols " + std::to_string(cols));
      EXPECT_TRUE(y.padding_is_poisoned());
      TestMatrix alone(1, cols);
      for (std::int64_t col = 0; col < cols; ++col) alone.set(0, col, before.at(1, col));
      cpu::sum_rows(pool_, x.view(), std::span(rows).subspan(3), std::span(factors).subspan(3),
                    accumulate, alone.view());
      EXPECT_TRUE(same_bits(alone.row(0), y.row(1)));
    }
  }
}

TEST_P(PointwiseTest, ChooseExperts) {
  TestMatrix logits(3, 4, 2);
  const float rows[3][4] = {{1.0F, 3.0F, 2.0F, 0.0F}, {5.0F, 5.0F, 5.0F, 5.0F}, {-9, -1, 80, -1}};
  for (std::int64_t row = 0; row < 3; ++row) {
    for (std::int64_t col = 0; col < 4; ++col) logits.set(row, col, rows[row][col]);
  }
  std::vector<std::int32_t> experts(6);
  std::vector<float> shares(6);
  for (const bool over_chosen : {true, false}) {
    cpu::choose_experts(pool_, logits.view(), over_chosen, experts, shares);
    EXPECT_EQ(experts, (std::vector<std::int32_t>{1, 2, 0, 1, 2, 1}));
    for (std::size_t i = 0; i < experts.size(); ++i) {
      double sum = 0.0;
      const float* row = rows[i / 2];
      for (int column = 0; column < 4; ++column) {
        const bool chosen = column == experts[i] || column == experts[i ^ 1];
        if (chosen || !over_chosen) sum += std::exp(static_cast<double>(row[column]) - row[1]);
      }
      const double share = std::exp(static_cast<double>(row[experts[i]]) - row[1]) / sum;
      EXPECT_NEAR(shares[i], share, 1e-6) << i;
    }
  }
  // NaN is chosen, so that nothing hides it.
  logits.set(0, 3, std::nanf(""));
  cpu::choose_experts(pool_, logits.view(), true, experts, shares);
  EXPECT_EQ(experts[0], 3);
  EXPECT_TRUE(std::isnan(shares[0]) && std::isnan(shares[1]));
  EXPECT_FALSE(std::isnan(shares[2]));
}

TEST_P(PointwiseTest, EmbedAndPositions) {
  for (const DType dtype : kStoredTypes) {
    for (const std::int64_t cols : kWidths) {
      const TestMatrix table = TestMatrix(11, cols, 3, dtype).randomize(random_);
      const std::vector<TokenId> ids = {10, 0, 4, 4};
      TestMatrix y(4, cols, 1);
      ops_->embed(ids, table.view(), 1.7F, y.view(), *stream_);
      expect_close(y, reference::embed(ids, table.view(), 1.7F), tolerance::kUnit, "embed");
      const reference::Values expected = reference::add_positions(ids, table.view(), y.view());
      ops_->add_positions(ids, table.view(), y.view(), *stream_);
      expect_close(y, expected, tolerance::kUnit, "positions");
      for (const std::int32_t bad : {-1, 11}) {
        const std::vector<TokenId> outside = {0, bad, 0, 0};
        EXPECT_THROW(ops_->embed(outside, table.view(), 1.0F, y.view(), *stream_), Error);
        EXPECT_THROW(ops_->add_positions(outside, table.view(), y.view(), *stream_), Error);
      }
    }
  }
}

// A row's result alone and among others, on any number of threads.
TEST_P(PointwiseTest, RowsDoNotDependOnNeighboursOrThreads) {
  constexpr std::int64_t kRows = 300, kCols = 333;
  const TestMatrix x = TestMatrix(kRows, kCols, 1).randomize(random_, 2.0F);
  const TestMatrix weight = TestMatrix(1, kCols).randomize(random_);
  const auto all_ops = [&](Ops& ops, const ConstMatrix& in) {
    TestMatrix y(in.rows, kCols);
    ops.rms_norm(in, weight.floats(), 1.0F, 1e-6F, y.view(), *stream_);
    ops.layer_norm(y.view(), weight.floats(), weight.floats(), 1e-5F, y.view(), *stream_);
    ops.activate(Activation::kGeluTanh, y.view(), *stream_);
    ops.gated_activation(Activation::kSilu, y.view(), in, y.view(), *stream_);
    ops.activate(Activation::kGeluErf, y.view(), *stream_);
    ops.rope(y.view(), 3, 111, 88, ConstMatrix{in.data, in.dtype, in.rows, 88, in.row_stride},
             *stream_);
    return y;
  };
  const TestMatrix together = all_ops(*ops_, x.view());
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
    for (const std::int64_t count : {std::int64_t{1}, std::int64_t{7}, kRows}) {
      for (std::int64_t first = 0; first < kRows; first += 50) {
        const ConstMatrix part = x.view(first, std::min(count, kRows - first));
        const TestMatrix y = all_ops(*ops, part);
        for (std::int64_t row = 0; row < part.rows; ++row) {
          ASSERT_TRUE(same_bits(y.row(row), together.row(first + row)))
              << "row " << first + row << " in a call of " << part.rows;
        }
      }
    }
  }
}

TRIPHASE_KERNEL_TARGETS(PointwiseTest);

}  // namespace
}  // namespace triphase
