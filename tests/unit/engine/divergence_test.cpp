// Divergence of next-token distributions: its value on small distributions, and which rows are
// compared with which.

#include "runtime/calibrate/divergence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "base/error.h"
#include "tests/support/tiny_model.h"

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

TEST(LogitsComparison, MeansAreOverTokensAndErrorsOverPrompts) {
  std::vector<ScoreTask> tasks(2);
  tasks[0].tokens = {1, 2, 3};  // one score
  tasks[0].first_scored = 2;
  tasks[1].tokens = {1, 2, 3, 4, 5};  // three
  tasks[1].first_scored = 2;
  LogitsComparison logits(tasks, 2);
  const float log3 = std::log(3.0F);
  const std::vector<float> even = {0.0F, 0.0F};
  const std::vector<float> first = {log3, 0.0F};  // 3/4, 1/4
  const std::vector<float> second = {0.0F, log3};
  logits.keep({0, 0, first});
  for (const std::size_t score : {0U, 1U, 2U}) logits.keep({1, score, first});
  logits.compare({0, 0, second});
  logits.compare({1, 0, first});
  logits.compare({1, 1, first});
  logits.compare({1, 2, even});  // ties go to the lower id: agrees
  const Divergence found = logits.divergence();
  const double far = 0.5 * std::log(3.0);                           // first beside second
  const double near = 0.75 * std::log(1.5) + 0.25 * std::log(0.5);  // first beside even
  EXPECT_EQ(found.tokens, 4);
  EXPECT_NEAR(found.kl, (far + near) / 4, 1e-6);
  EXPECT_DOUBLE_EQ(found.agreement, 0.75);
  EXPECT_NEAR(found.kl_stderr, std::abs(far - near / 3) / 2, 1e-6);
  EXPECT_DOUBLE_EQ(found.agreement_stderr, 0.5);
}

TEST(LogitsComparison, TheEngineGivesEveryScoredRowOnce) {
  std::vector<ScoreTask> tasks(3);
  for (std::size_t at = 0; at < tasks.size(); ++at) {
    for (std::size_t i = 0; i < 12 + 5 * at; ++i) {
      tasks[at].tokens.push_back(static_cast<TokenId>((7 * i + at) % 256));
    }
    tasks[at].first_scored = 4;
    tasks[at].prefill_tokens = 3;
  }
  LogitsComparison logits(tasks, tiny_config().vocab_size);
  std::mutex mutex;
  std::map<std::pair<std::uint64_t, std::size_t>, double> rows;
  const auto score = [&](const std::function<void(const ScoredRow&)>& on_row) {
    TinyModel model({.threads = 2});
    model.engine().set_row_observer(on_row);
    return model.engine().run_all(tasks);
  };
  (void)score([&](const ScoredRow& row) { logits.keep(row); });
  const auto scored = score([&](const ScoredRow& row) {
    const TokenId token = tasks[row.index].tokens[4 + row.score];
    double sum = 0.0;
    for (const float logit : row.logits) sum += std::exp(static_cast<double>(logit));
    const double logprob =
        static_cast<double>(row.logits[static_cast<std::size_t>(token)]) - std::log(sum);
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(rows.emplace(std::pair(row.index, row.score), logprob).second);
    logits.compare(row);
  });
  ASSERT_EQ(rows.size(), 8U + 13U + 18U);
  // The row is the one that its score says.
  for (const auto& [at, logprob] : rows)
    EXPECT_NEAR(scored[at.first].scores[at.second].logprob, logprob, 1e-12);
  const Divergence found = logits.divergence();
  EXPECT_EQ(found.tokens, 8 + 13 + 18);
  EXPECT_EQ(found.kl, 0.0);
  EXPECT_EQ(found.agreement, 1.0);
}

}  // namespace
}  // namespace triphase
