// A layer of experts against the sum that its contract writes down.

#include "kernels/sizing/expert_workspace.h"
#include "tests/unit/kernels/kernel_test.h"

namespace triphase {
namespace {

constexpr std::int64_t kHidden = 12, kFfn = 7, kExperts = 5;

class ExpertsTest : public KernelTest {
 protected:
  struct Network {
    TestMatrix router{kExperts, kHidden}, up{kExperts * 2 * kFfn, kHidden},
        down{kExperts * kHidden, kFfn}, biases{1, kExperts*(1 + 2 * kFfn + kHidden)};
    [[nodiscard]] const float* up_bias() const { return biases.floats() + kExperts; }
    [[nodiscard]] const float* down_bias() const { return up_bias() + kExperts * 2 * kFfn; }
  };

  static double row_product(const TestMatrix& matrix, std::int64_t row,
                            const std::vector<double>& x, float bias) {
    double sum = bias;
    for (std::size_t i = 0; i < x.size(); ++i) {
      sum += x[i] * static_cast<double>(matrix.at(row, static_cast<std::int64_t>(i)));
    }
    return sum;
  }

  static std::vector<double> output(const Network& net, std::int64_t expert,
                                    const std::vector<double>& x) {
    std::vector<double> inner;
    for (std::int64_t f = 0; f < kFfn; ++f) {
      const std::int64_t gate = expert * 2 * kFfn + f;
      inner.push_back(reference::activation(Activation::kSilu,
                                            row_product(net.up, gate, x, net.up_bias()[gate])) *
                      row_product(net.up, gate + kFfn, x, net.up_bias()[gate + kFfn]));
    }
    std::vector<double> result;
    for (std::int64_t c = 0; c < kHidden; ++c) {
      const std::int64_t row = expert * kHidden + c;
      result.push_back(row_product(net.down, row, inner, net.down_bias()[row]));
    }
    return result;
  }

  static std::vector<double> expected_row(const Network& net, const std::vector<double>& x,
                                          std::int64_t per_row, bool shares_sum_to_one) {
    std::vector<std::pair<double, std::int64_t>> logits;
    double all = 0.0;
    for (std::int64_t expert = 0; expert < kExperts; ++expert) {
      logits.emplace_back(row_product(net.router, expert, x, net.biases.at(0, expert)), expert);
      all += std::exp(logits.back().first);
    }
    std::ranges::sort(logits, std::greater<>());
    logits.resize(static_cast<std::size_t>(per_row));
    double chosen = 0.0;
    for (const auto& [logit, expert] : logits) chosen += std::exp(logit);
    std::vector<double> sum(kHidden, 0.0);
    for (const auto& [logit, expert] : logits) {
      const double share = std::exp(logit) / (shares_sum_to_one ? chosen : all);
      const std::vector<double> out = output(net, expert, x);
      for (std::size_t c = 0; c < out.size(); ++c) sum[c] += share * out[c];
    }
    return sum;
  }
};

// What lay in the workspace before is nobody's input: neither NaN nor counts of a billion rows.
TEST_P(ExpertsTest, AreTheSumOfTheChosenWhateverTheWorkspaceHeld) {
  Network net;
  for (TestMatrix* matrix : {&net.router, &net.up, &net.down, &net.biases}) {
    matrix->randomize(random_, 0.7F);
  }
  for (const std::int64_t rows : {1, 2, 9}) {
    for (const std::int64_t per_row : {1, 2, 5}) {
      for (const int byte : {0xFF, 0x3F}) {
        const ExpertLayer layer{.router = std::as_const(net.router).view(),
                                .up = std::as_const(net.up).view(),
                                .down = std::as_const(net.down).view(),
                                .router_bias = net.biases.floats(),
                                .up_bias = net.up_bias(),
                                .down_bias = net.down_bias(),
                                .per_row = per_row,
                                .shares_sum_to_one = byte == 0xFF};
        const TestMatrix x = TestMatrix(rows, kHidden, 3).randomize(random_);
        const TestMatrix old = TestMatrix(rows, kHidden, 2).randomize(random_);
        const std::int64_t bytes = expert_layout({rows, kHidden, kExperts, per_row, kFfn}).bytes;
        std::vector<std::byte> memory(static_cast<std::size_t>(bytes) + 64,
                                      static_cast<std::byte>(byte));
        const auto at = reinterpret_cast<std::uintptr_t>(memory.data());
        const Workspace workspace{memory.data() + (64 - at % 64) % 64,
                                  static_cast<std::size_t>(bytes)};
        for (const bool accumulate : {false, true}) {
          TestMatrix y = old;
          ops_->experts(x.view(), layer, accumulate, y.view(), workspace, *stream_);
          EXPECT_TRUE(y.padding_is_poisoned());
          for (std::int64_t row = 0; row < rows; ++row) {
            const std::vector<float> floats = x.row(row);
            const std::vector<double> sum =
                expected_row(net, {floats.begin(), floats.end()}, per_row, byte == 0xFF);
            for (std::int64_t c = 0; c < kHidden; ++c) {
              const double before = accumulate ? old.at(row, c) : 0.0;
              ASSERT_NEAR(y.at(row, c), before + sum[static_cast<std::size_t>(c)], 1e-4)
                  << rows << " rows, " << per_row << " experts each, row " << row;
            }
          }
        }
      }
    }
  }
}

TRIPHASE_KERNEL_TARGETS(ExpertsTest);

}  // namespace
}  // namespace triphase
