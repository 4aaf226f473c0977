// Teacher-forced scoring: never dependent on batch, chunk, sharing or the path a token takes.

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "runtime/engine/score_engine.h"
#include "scheduler/placement/vllm_policy.h"
#include "tests/support/tiny_model.h"

namespace triphase {
namespace {

std::vector<Completion> score(const TinyModelOptions& options, std::vector<ScoreTask> tasks) {
  return TinyModel(options).engine().run_all(std::move(tasks));
}

ScoreTask task(std::mt19937& random, std::size_t size, std::int64_t first_scored,
               std::int64_t prefill_tokens) {
  ScoreTask made;
  for (std::size_t i = 0; i < size; ++i)
    made.tokens.push_back(static_cast<TokenId>(random() % 256));
  made.first_scored = first_scored;
  made.prefill_tokens = prefill_tokens;
  return made;
}

std::vector<ScoreTask> mixed_tasks(std::int64_t prefill_tokens) {
  std::mt19937 random(3);
  std::vector<ScoreTask> tasks;
  for (const std::size_t size : {2U, 3U, 17U, 40U, 41U, 90U, 161U, 33U, 64U}) {
    const auto half = static_cast<std::int64_t>(size / 2);
    tasks.push_back(task(random, size, std::max<std::int64_t>(half, 1), prefill_tokens));
  }
  // A prefix that several tasks share, in whole blocks and not.
  for (const std::int64_t first : {20, 24, 30}) {
    ScoreTask shared = tasks[5];
    shared.tokens.resize(50);
    shared.tokens.back() = static_cast<TokenId>(first);
    shared.first_scored = first;
    tasks.push_back(std::move(shared));
  }
  return tasks;
}

void expect_equal(const std::vector<Completion>& a, const std::vector<Completion>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].index, b[i].index);
    EXPECT_FALSE(a[i].error || b[i].error);
    EXPECT_FALSE(a[i].scores.empty());
    ASSERT_EQ(a[i].scores.size(), b[i].scores.size()) << "task " << i;
    for (std::size_t at = 0; at < a[i].scores.size(); ++at) {
      // Bit for bit, so no tolerance.
      ASSERT_EQ(a[i].scores[at].logprob, b[i].scores[at].logprob) << "task " << i << " at " << at;
      ASSERT_EQ(a[i].scores[at].best, b[i].scores[at].best);
    }
  }
}

TEST(Score, DecodedScoresEqualPrefilledOnesBitForBit) {
  const auto prefilled = score({}, mixed_tasks(10'000));
  for (const std::int64_t prefill : {0, 1, 7, 20}) {
    SCOPED_TRACE(prefill);
    expect_equal(prefilled, score({}, mixed_tasks(prefill)));
  }
}

TEST(Score, NeighboursChunksAndThreadsChangeNothing) {
  const auto together = score({}, mixed_tasks(12));
  std::vector<Completion> alone;
  for (const ScoreTask& one : mixed_tasks(12)) {
    alone.push_back(score({.batch_size = 1, .prefill_chunk = 5}, {one}).front());
    alone.back().index = alone.size() - 1;
  }
  expect_equal(together, alone);
  expect_equal(together,
               score({.batch_size = 7, .prefill_chunk = 64, .threads = 3}, mixed_tasks(12)));
}

// Under a sparse method too, where what was decoded must be decoded again.
TEST(Score, PreemptionChangesNothing) {
  AttentionOptions sparse;
  sparse.kind = AttentionKind::kSwa;
  set_keep_ratio(sparse, 0.3);
  std::vector<Completion> dense;
  for (const AttentionOptions& attention : {AttentionOptions{}, sparse}) {
    TinyModel alone({.attention = attention});
    const auto roomy = alone.engine().run_all(mixed_tasks(12));
    const auto tokens = [](TinyModel& model) {
      return model.engine().stats().computed_prompt_tokens +
             model.engine().placement().stats().shared_prompt_tokens;
    };
    for (const bool drop : {true, false}) {
      SCOPED_TRACE(testing::Message() << attention_name(attention.kind) << " drop " << drop);
      const VllmOptions options{.preemption = drop ? PreemptMode::kDrop : PreemptMode::kSwap};
      TinyModel tight({.kv_blocks = 22,
                       .attention = attention,
                       .host_blocks = drop ? 0 : 100,
                       .staging_blocks = drop ? 0 : 40,
                       .policy = std::make_shared<VllmPolicy>(options)});
      expect_equal(roomy, tight.engine().run_all(mixed_tasks(12)));
      const PlacementStats& stats = tight.engine().placement().stats();
      EXPECT_GT(drop ? stats.drops : stats.swaps, 0U);
      EXPECT_EQ(tokens(tight), tokens(alone));
      const EngineStats& counts = tight.engine().stats();
      EXPECT_EQ(counts.recomputed_tokens > 0, stats.drops > 0);
      // Dense, the row that a dropped request would have decoded becomes prefill.
      if (attention.sparse() || stats.drops == 0) {
        EXPECT_EQ(counts.results_of_decoding, alone.engine().stats().results_of_decoding);
      }
    }
    if (dense.empty()) {
      dense = roomy;
    } else {
      EXPECT_NE(dense[5].scores[30].logprob, roomy[5].scores[30].logprob);
    }
  }
}

TEST(Score, SharesEqualPrefixesButNotDecodedKv) {
  std::mt19937 random(4);
  ScoreTask first = task(random, 60, 50, 1000);
  ScoreTask second = first;
  second.tokens.back() = first.tokens.back() == 1 ? 2 : 1;
  TinyModel model({});
  std::size_t scored = 0;
  for (const Completion& one : model.engine().run_all(std::vector{first, second, first})) {
    scored += one.scores.size();
  }
  // Whole blocks of 8 below position 49.
  EXPECT_EQ(model.engine().placement().stats().shared_prompt_tokens, 2U * 48U);
  EXPECT_EQ(model.engine().stats().computed_prompt_tokens, 3U * 59U - 2U * 48U);
  EXPECT_EQ(model.engine().stats().generated_tokens, 0U);
  EXPECT_EQ(scored, 30U);

  // The same with a decode path from token 20 on: what was decoded is nobody else's.
  first.prefill_tokens = second.prefill_tokens = 20;
  TinyModel decoding({});
  (void)decoding.engine().run_all(std::vector{first, second});
  EXPECT_EQ(decoding.engine().placement().stats().shared_prompt_tokens, 16U);
  EXPECT_EQ(decoding.engine().stats().decoded_tokens, 2U * 39U);
}

TEST(Score, TakesTheLongestContextAndLittleMemory) {
  std::mt19937 random(5);
  const auto longest = static_cast<std::size_t>(tiny_config().max_positions) + 1;
  std::vector<ScoreTask> tasks;
  for (int i = 0; i < 5; ++i) tasks.push_back(task(random, longest, 1 + i, 30));
  // Blocks of one longest sequence and one more.
  expect_equal(score({}, tasks), score({.kv_blocks = 21}, tasks));
}

Request rolling(std::uint64_t index, std::vector<TokenId> tokens) {
  Request request;
  request.index = index;
  request.score_form = ScoreForm::kRolling;
  request.prompt_form = PromptForm::kTokens;
  request.tokens = std::move(tokens);
  return request;
}

TEST(ScoreEngine, ALongTextIsTheSumOfItsWindows) {
  std::mt19937 random(6);
  const ScoreTask text = task(random, 400, 1, 0);
  TinyModel model({});
  const ModelConfig config = tiny_config();
  const ScorePreparer preparer(config, nullptr,
                               {.context = config.max_positions, .kv_tokens = 160});
  ScoreEngine engine(model.engine(), preparer, /*token_logprobs=*/true);
  engine.submit(rolling(9, text.tokens));
  engine.submit(rolling(10, {300}));
  std::vector<Completion> done;
  while (engine.in_flight() > 0) {
    for (Completion& one : engine.step()) done.push_back(std::move(one));
  }
  ASSERT_EQ(done.size(), 2U);
  EXPECT_EQ(done[0].error.value().code, "E-IN-TOKEN");
  ASSERT_TRUE(done[1].score.has_value());
  EXPECT_EQ(done[1].tokens, text.tokens);

  // By hand: 160 tokens after the start token (the model has no BOS: its EOS), then 160, then 80
  // behind as many of the window before.
  double sum = 0.0;
  std::size_t at = 0;
  for (const std::size_t begin : {0U, 160U, 320U}) {
    const std::size_t start = std::min<std::size_t>(begin, 240);
    ScoreTask window;
    window.first_scored = static_cast<std::int64_t>(begin - start) + 1;
    window.tokens = {begin == 0 ? 256 : text.tokens[start - 1]};
    for (std::size_t i = start; i < start + 160; ++i) {
      window.tokens.push_back(text.tokens[i]);
    }
    const Completion scored = score({}, {window}).front();
    for (const TokenScore& token : scored.scores) {
      sum += token.logprob;
      ASSERT_EQ(done[1].score->token_logprobs[at++], token.logprob);
    }
  }
  EXPECT_EQ(at, 400U);
  EXPECT_EQ(done[1].score->logprob, sum);
}

}  // namespace
}  // namespace triphase
