// Weights of tokens as statistics sum them (token_weights.h), against float64: lists of any number
// of query heads, more and less than the threads that share a token.

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/cuda/kept_tokens.h"
#include "kernels/cuda/weight_window.h"
#include "tests/emulated/emulated_test.h"

namespace triphase::cuda {
namespace {

constexpr std::int64_t kLists = 3;
constexpr std::int64_t kCapacity = 300;
constexpr std::int64_t kCounts[kLists] = {300, 0, 131};

// Scores behind the lists' ends are NaN.
struct Attended {
  Attended(int heads_of_list, unsigned seed) : heads(heads_of_list) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0F, 4.0F);
    for (std::int64_t list = 0; list < kLists; ++list) {
      for (int head = 0; head < heads; ++head) {
        softmax.push_back(normal(random) + 9.0F);
        softmax.push_back(std::abs(normal(random)));
        for (std::int64_t i = 0; i < kCapacity; ++i) {
          values.push_back(i < kCounts[list] ? normal(random) : std::nanf(""));
        }
      }
    }
  }
  [[nodiscard]] ListedScores view() const {
    return {values.data(), softmax.data(), kCapacity, heads};
  }
  [[nodiscard]] double weight(std::int64_t list, std::int64_t token) const {
    double sum = 0;
    for (std::int64_t head = list * heads; head < (list + 1) * heads; ++head) {
      const auto at = static_cast<std::size_t>(head);
      const double value = values[at * kCapacity + static_cast<std::size_t>(token)];
      sum += std::exp2(value - static_cast<double>(softmax[2 * at])) *
             static_cast<double>(softmax[2 * at + 1]);
    }
    return sum;
  }

  int heads;
  std::vector<float> values, softmax;
};

void expect_weight(double actual, const Attended& attended, std::int64_t list, std::int64_t token) {
  const double expected = attended.weight(list, token);
  ASSERT_NEAR(actual, expected, 1e-5 * expected + 0x1p-32)
      << "heads " << attended.heads << " list " << list << " token " << token;
}

class TokenWeights : public testing::TestWithParam<int> {};

TEST_P(TokenWeights, WindowsAddThoseOfTheirLists) {
  const Attended attended(GetParam(), 5);
  std::vector<std::int32_t> tokens;
  for (std::int64_t list = 0; list < kLists; ++list) {
    for (std::int32_t i = 0; i < kCapacity; ++i) tokens.push_back(2 * i);
  }
  for (const bool exact : {true, false}) {
    std::vector<std::vector<std::int64_t>> memory;
    std::vector<WeightRow> rows;
    for (std::int64_t i = 0; i < kLists; ++i) {
      const std::uint64_t bytes = weight_window_bytes(exact, 600, exact ? 300 : 2);
      memory.emplace_back(bytes / sizeof(std::int64_t), 0);
      rows.push_back({.window = weight_window_at(memory.back().data(), exact, 600, exact ? 300 : 2),
                      .step = {.count = kCounts[kLists - 1 - i]},
                      .context = 600,
                      .attended = kLists - 1 - i});
    }
    add_weights(rows.data(), kLists, tokens.data(), attended.view(), 300, 0, 0, false, nullptr);
    for (std::int64_t i = 0; i < kLists; ++i) {
      const WeightRow& row = rows[static_cast<std::size_t>(i)];
      for (std::int64_t t = 0; t < row.step.count; ++t) {
        expect_weight(std::ldexp(static_cast<double>(row.window.sums[2 * t]), -32), attended,
                      row.attended, t);
        ASSERT_EQ(row.window.sums[2 * t + 1], 0);
      }
    }
  }
}

TEST_P(TokenWeights, KeptTokensAddThoseOfTheirLists) {
  const Attended attended(GetParam(), 6);
  std::vector<std::int32_t> tokens(kLists * kCapacity, 0);
  std::vector<float> sums(kLists * kCapacity, 0.0F);
  // A row of all lists has tokens as the shortest has.
  const KeptWeights row{{tokens.data(), sums.data(), 2, kCapacity}, 131, 0};
  Attended filled = attended;
  for (float& value : filled.values) {
    if (std::isnan(value)) value = 1.0F;
  }
  add_kept_weights(&row, 1, 2, filled.view(), 131, 0, false, nullptr);
  for (std::int64_t list = 0; list < 2; ++list) {
    for (std::int64_t t = 0; t < kCapacity; ++t) {
      const float sum = sums[static_cast<std::size_t>(list * kCapacity + t)];
      if (t < 131) {
        expect_weight(static_cast<double>(sum), filled, list, t);
      } else {
        ASSERT_EQ(sum, 0.0F);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, TokenWeights, testing::Values(1, 2, 3, 7, 8, 21, 42, 84));

}  // namespace
}  // namespace triphase::cuda
