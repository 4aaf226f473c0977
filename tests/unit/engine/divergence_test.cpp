// Divergence of next-token distributions: its value on small distributions, and which rows are
// compared with which.

#include "runtime/calibrate/divergence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "tests/support/scoring_rig.h"

namespace triphase {
namespace {

TEST(KlDivergence, IsThatOfTheSoftmax) {
  // p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2): 1/2 log 2 + 1/4 log 1 - 1/4 log 2.
  const std::vector<float> p = {std::log(2.0F), 0.0F, 0.0F};
  const std::vector<float> q = {7.0F, 7.0F, 7.0F + std::log(2.0F)};  // shifted: no matter
  EXPECT_NEAR(kl_divergence(p, q), 0.25 * std::log(2.0), 1e-6);
  EXPECT_EQ(kl_divergence(p, p), 0.0);
  // Far apart logits overflow nothing.
  const std::vector<float> sure = {1000.0F, 0.0F, 0.0F};
  const std::vector<float> other = {0.0F, 1000.0F, 0.0F};
  EXPECT_NEAR(kl_divergence(sure, other), 1000.0, 1e-3);
}

TEST(LogitsReference, MeansAreOverTokensAndErrorsOverPrompts) {
  std::vector<ScoreTask> tasks(2);
  tasks[0].tokens = {1, 2, 3};  // one score
  tasks[0].first_scored = 2;
  tasks[1].tokens = {1, 2, 3, 4, 5};  // three
  tasks[1].first_scored = 2;
  LogitsReference reference(tasks, 2);
  const float log3 = std::log(3.0F);
  const std::vector<float> even = {0.0F, 0.0F};
  const std::vector<float> first = {log3, 0.0F};  // 3/4, 1/4
  const std::vector<float> second = {0.0F, log3};
  reference.keep({0, 0, first});
  for (const std::size_t score : {0U, 1U, 2U}) reference.keep({1, score, first});
  reference.compare({0, 0, second});
  reference.compare({1, 0, first});
  reference.compare({1, 1, first});
  reference.compare({1, 2, even});  // ties go to the lower id: agrees
  const Divergence found = reference.take_divergence();
  const double far = 0.5 * std::log(3.0);                           // first beside second
  const double near = 0.75 * std::log(1.5) + 0.25 * std::log(0.5);  // first beside even
  EXPECT_EQ(found.tokens, 4);
  EXPECT_NEAR(found.kl, (far + near) / 4, 1e-6);
  EXPECT_DOUBLE_EQ(found.agreement, 0.75);
  EXPECT_NEAR(found.kl_stderr, std::abs(far - near / 3) / 2, 1e-6);
  EXPECT_DOUBLE_EQ(found.agreement_stderr, 0.5);
}

TEST(LogitsReference, TheScorerGivesEveryScoredRowOnce) {
  ScoringRig rig(2);
  std::vector<ScoreTask> tasks(3);
  for (std::size_t at = 0; at < tasks.size(); ++at) {
    for (std::size_t i = 0; i < 12 + 5 * at; ++i) {
      tasks[at].tokens.push_back(static_cast<TokenId>((7 * i + at) % 256));
    }
    tasks[at].first_scored = 4;
    tasks[at].prefill_tokens = 3;
    tasks[at].key = 100 + at;  // not the place in the list
  }
  LogitsReference reference(tasks, rig.config().vocab_size);
  Scorer::Options options = rig.options();
  const auto score = [&](const std::function<void(const ScoredRow&)>& on_row) {
    options.on_row = on_row;
    Scorer scorer(options, rig.model(), rig.kv(), rig.backend().threads(), rig.backend().stream());
    return scorer.score_all(tasks);
  };
  (void)score([&](const ScoredRow& row) { reference.keep(row); });
  const auto scored = score([&](const ScoredRow& row) {
    // The row is the one that its score says.
    TokenScore own;
    const TokenId token = tasks[row.key].tokens[4 + row.score];
    EXPECT_TRUE(score_token(row.logits, token, own));
    reference.compare(row);
  });
  EXPECT_EQ(scored[2].key, 102U);
  const Divergence found = reference.take_divergence();
  EXPECT_EQ(found.tokens, 8 + 13 + 18);
  EXPECT_EQ(found.kl, 0.0);
  EXPECT_EQ(found.agreement, 1.0);
}

}  // namespace
}  // namespace triphase
