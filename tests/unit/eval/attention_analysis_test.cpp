// What the analysis of attention says of rows that are easy to work out by hand.

#include "runtime/eval/attention_analysis.h"

#include <gtest/gtest.h>

#include <cmath>

namespace triphase::eval {
namespace {

using Tokens = std::vector<std::int32_t>;

TEST(Spearman, IsThePearsonCorrelationOfRanks) {
  const std::vector<double> values = {3.0, -1.0, 10.0, 7.0};
  const std::vector<double> squares = {9.0, -2.0, 100.0, 49.0};  // another scale, the same order
  EXPECT_DOUBLE_EQ(spearman(values, squares), 1.0);
  const std::vector<double> reversed = {-3.0, 1.0, -10.0, -7.0};
  EXPECT_DOUBLE_EQ(spearman(values, reversed), -1.0);
  // Ranks 0, 1.5, 1.5, 3 beside 0, 1, 2, 3: 4.5 / sqrt(4.5 * 5).
  const std::vector<double> tied = {1.0, 2.0, 2.0, 3.0};
  const std::vector<double> ascending = {1.0, 2.0, 3.0, 4.0};
  EXPECT_NEAR(spearman(tied, ascending), 4.5 / std::sqrt(4.5 * 5.0), 1e-12);
  EXPECT_TRUE(std::isnan(spearman(std::vector<double>{1.0, 1.0}, std::vector<double>{1.0, 2.0})));
  EXPECT_TRUE(std::isnan(spearman(std::vector<double>{}, std::vector<double>{})));
}

TEST(CompareRow, CountsCoverageAgreementAndSmallWeights) {
  const std::vector<float> weights = {0.5F, 0.004F, 0.25F, 0.006F, 0.24F};
  const RowAgreement all = compare_row(weights, Tokens{0, 1, 2, 3, 4});
  EXPECT_NEAR(all.coverage, 1.0, 1e-6);
  EXPECT_DOUBLE_EQ(all.agreement, 1.0);
  EXPECT_DOUBLE_EQ(all.sparsity, 0.2);  // 0.004 is below 1 % of 0.5
  EXPECT_DOUBLE_EQ(all.dense_sparsity, 0.2);
  const RowAgreement some = compare_row(weights, Tokens{2, 3});
  EXPECT_NEAR(some.coverage, 0.256, 1e-6);
  EXPECT_DOUBLE_EQ(some.agreement, 0.5);  // the two heaviest are 0 and 2
  EXPECT_DOUBLE_EQ(some.sparsity, 0.6);   // 0.006 is above 1 % of 0.25
  EXPECT_DOUBLE_EQ(some.dense_sparsity, 0.2);
  const RowAgreement none = compare_row(weights, Tokens{});
  EXPECT_EQ(none.coverage, 0.0);
  EXPECT_EQ(none.sparsity, 1.0);
}

TEST(CompareRow, EqualWeightsAreEquallyHeavy) {
  const std::vector<float> weights = {0.25F, 0.25F, 0.25F, 0.25F};
  EXPECT_DOUBLE_EQ(compare_row(weights, Tokens{2, 3}).agreement, 1.0);
  const std::vector<float> one_above = {0.4F, 0.2F, 0.2F, 0.2F};
  EXPECT_DOUBLE_EQ(compare_row(one_above, Tokens{2, 3}).agreement, 0.5);
  EXPECT_DOUBLE_EQ(compare_row(one_above, Tokens{0, 3}).agreement, 1.0);
}

TEST(Observable, DenseBecomesEverythingAndOthersStay) {
  const AttentionOptions dense = observable({});
  EXPECT_EQ(dense.kind, AttentionKind::kTopk);
  EXPECT_EQ(budget_tokens(dense, 100'000, 10), 100'000);
  AttentionOptions swa;
  swa.kind = AttentionKind::kSwa;
  EXPECT_EQ(observable(swa).kind, AttentionKind::kSwa);
}

}  // namespace
}  // namespace triphase::eval
