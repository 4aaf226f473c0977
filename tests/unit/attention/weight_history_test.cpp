#include "models/attention/weight_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace triphase {
namespace {

// Sums over the rows that a plain list of them keeps.
TEST(WeightHistory, SumsTheLastRowsAndForgetsTheOthersExactly) {
  std::mt19937 random(3);
  for (const bool exact : {true, false}) {
    WeightHistory history(exact);
    std::vector<std::vector<float>> rows;
    for (std::int64_t step = 0; step < 400; ++step) {
      const std::int64_t window = 10 + step / 5;
      std::vector<std::int32_t> tokens;
      std::vector<float> weights;
      std::vector<float> dense(static_cast<std::size_t>(step + 1), 0.0F);
      for (std::int32_t t = 0; t <= step; ++t) {
        if (random() % 4 != 0) continue;
        tokens.push_back(t);
        weights.push_back(static_cast<float>(random() % 1000) / 1000.0F);
        dense[static_cast<std::size_t>(t)] = weights.back();
      }
      rows.push_back(dense);
      history.add(tokens, weights, window);
      const std::int64_t kept = std::min<std::int64_t>(step + 1, window);
      if (exact) {
        ASSERT_EQ(history.rows(), kept);
      } else {
        ASSERT_GE(history.rows(), kept);
        ASSERT_LE(history.rows(), window + window / 8 + 1);
      }
      std::vector<float> scores;
      history.scores(step + 2, scores);
      for (std::size_t t = 0; t < scores.size(); ++t) {
        double sum = 0;
        bool any = false;
        for (std::size_t r = rows.size() - static_cast<std::size_t>(history.rows());
             r < rows.size(); ++r) {
          if (t >= rows[r].size()) continue;
          sum += rows[r][t];
          any = any || rows[r][t] != 0.0F;
        }
        ASSERT_NEAR(scores[t], sum, 1e-6 * sum);
        ASSERT_EQ(scores[t] != 0.0F, any);
      }
    }
    EXPECT_GT(history.bytes(), 0U);
  }
}

}  // namespace
}  // namespace triphase
