// Where context and continuation meet, and the windows of long texts (lm-evaluation-harness rules).

#include "runtime/job/score_preparer.h"

#include <gtest/gtest.h>

#include "tests/support/tiny_tokenizer.h"

namespace triphase {
namespace {

constexpr TokenId kBos = 256;

// Bytes, but a blank joins the letter after it ("_x" is 300 + x), as in subword vocabularies; BOS
// in front when special tokens are added.
class JoiningTokenizer final : public Tokenizer {
 public:
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text,
                                            const EncodeOptions& options) const override {
    std::vector<TokenId> ids;
    if (options.add_special) ids.push_back(kBos);
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == ' ' && i + 1 < text.size() && text[i + 1] != ' ') {
        ids.push_back(300 + static_cast<unsigned char>(text[++i]));
      } else {
        ids.push_back(static_cast<unsigned char>(text[i]));
      }
    }
    return ids;
  }
  [[nodiscard]] std::unique_ptr<TextDecoder> new_decoder(bool skip) const override {
    return ByteTokenizer().new_decoder(skip);
  }
  [[nodiscard]] std::string token_bytes(TokenId) const override { return "?"; }
  [[nodiscard]] bool is_special(TokenId id) const override { return id == kBos; }
  [[nodiscard]] std::int64_t vocab_size() const override { return 600; }
  [[nodiscard]] std::optional<TokenId> bos() const override { return kBos; }
  [[nodiscard]] std::string_view kind() const override { return "joining"; }
};

struct Case {
  ModelConfig config;
  JoiningTokenizer tokenizer;
  ScorePreparer::Limits limits{.context = 20, .kv_tokens = 20};
  PreparedScore prepared;

  Case() { config.vocab_size = 600; }
  std::string code(const Request& request, bool text = true) {
    prepared = {};
    const auto error =
        ScorePreparer(config, text ? &tokenizer : nullptr, limits).prepare(request, prepared);
    return error ? error->code : "";
  }
};

Request pair(const std::string& context, const std::string& continuation) {
  Request request;
  request.score_form = ScoreForm::kContinuation;
  request.text = context;
  request.continuation = continuation;
  return request;
}

Request pair_ids(std::vector<TokenId> context, std::vector<TokenId> continuation) {
  Request request;
  request.score_form = ScoreForm::kContinuation;
  request.prompt_form = PromptForm::kTokens;
  request.tokens = std::move(context);
  request.continuation_tokens = std::move(continuation);
  return request;
}

Request text(const std::string& whole) {
  Request request;
  request.score_form = ScoreForm::kRolling;
  request.text = whole;
  return request;
}

using Tokens = std::vector<TokenId>;

TEST(ScorePreparer, SplitsWhereTheContextAloneEnds) {
  Case test;
  for (const auto& request : {pair("ab", " cd"), pair("ab ", "cd")}) {
    ASSERT_EQ(test.code(request), "");
    ASSERT_EQ(test.prepared.tasks.size(), 1U);
    EXPECT_EQ(test.prepared.tasks[0].tokens, (Tokens{kBos, 'a', 'b', 300 + 'c', 'd'}));
    EXPECT_EQ(test.prepared.tasks[0].first_scored, 3);
    EXPECT_EQ(test.prepared.tasks[0].prefill_tokens, 4);
    EXPECT_EQ(test.prepared.scored, (Tokens{300 + 'c', 'd'}));
    EXPECT_EQ(test.prepared.context_tokens, 3);
  }
}

TEST(ScorePreparer, DecodedScoresComeAfterAPrefilledContext) {
  Case test;
  test.limits.decodes = true;
  ASSERT_EQ(test.code(pair("ab", " cd")), "");
  EXPECT_EQ(test.prepared.tasks[0].first_scored, 3);
  EXPECT_EQ(test.prepared.tasks[0].prefill_tokens, 2);
  ASSERT_EQ(test.code(text("0123456789")), "");
  EXPECT_EQ(test.prepared.tasks[0].prefill_tokens, 0);
}

TEST(ScorePreparer, AnEmptyContextStartsWithBosOrEos) {
  Case test;
  ASSERT_EQ(test.code(pair("", "ab")), "");
  EXPECT_EQ(test.prepared.tasks[0].tokens, (Tokens{kBos, 'a', 'b'}));
  ASSERT_EQ(test.code(pair("  ", "a")), "");  // blanks belong to the continuation
  EXPECT_EQ(test.prepared.scored, (Tokens{' ', 300 + 'a'}));
  EXPECT_EQ(test.code(pair_ids({}, {1}), false), "E-IN-EMPTY");  // nothing to start from
  test.config.eos_ids = {2};
  ASSERT_EQ(test.code(pair_ids({}, {1}), false), "");
  EXPECT_EQ(test.prepared.tasks[0].tokens, (Tokens{2, 1}));
  test.config.bos_id = 5;
  ASSERT_EQ(test.code(pair_ids({}, {1}), false), "");
  EXPECT_EQ(test.prepared.tasks[0].tokens, (Tokens{5, 1}));
}

TEST(ScorePreparer, OneTokenMoreThanTheContextIsScored) {
  Case test;
  ASSERT_EQ(test.code(pair_ids(Tokens(15, 1), Tokens(6, 2))), "");
  EXPECT_EQ(test.prepared.tasks[0].computed_tokens(), 20);
  EXPECT_EQ(test.code(pair_ids(Tokens(16, 1), Tokens(6, 2))), "E-IN-CONTEXT");
  test.limits.truncate = Truncate::kLeft;
  Tokens context(16, 1);
  context[0] = 3;
  ASSERT_EQ(test.code(pair_ids(context, Tokens(6, 2))), "");
  EXPECT_EQ(test.prepared.tasks[0].tokens.front(), 1);
  EXPECT_EQ(test.prepared.tasks[0].first_scored, 15);
  EXPECT_EQ(test.prepared.context_tokens, 15);
  ASSERT_EQ(test.code(pair_ids(context, Tokens(20, 2))), "");  // one token of context is left
  EXPECT_EQ(test.prepared.context_tokens, 1);
  EXPECT_EQ(test.code(pair_ids(context, Tokens(21, 2))), "E-IN-CONTEXT");
}

// A sparse method on a model whose every layer has a window of 20 tokens.
TEST(ScorePreparer, LinesBeyondTheWindowHearOfDenseAttentionWhereItTakesThem) {
  Case test;
  test.limits.window.dense_context = 30;
  const auto message = [&](std::size_t context, std::size_t continuation) {
    return ScorePreparer(test.config, &test.tokenizer, test.limits)
        .prepare(pair_ids(Tokens(context, 1), Tokens(continuation, 2)), test.prepared)
        .value()
        .message;
  };
  EXPECT_EQ(message(20, 11),
            "context: 20 tokens and 11 of the continuation, expected at most 21 together (the "
            "sliding window of every layer); hint: --attention dense takes it; --truncate=left "
            "keeps the context's end");
  EXPECT_EQ(message(20, 12),
            "context: 20 tokens and 12 of the continuation, expected at most 21 together (the "
            "sliding window of every layer); hint: --truncate=left keeps the context's end");
}

TEST(ScorePreparer, RefusesWhatCannotBeScored) {
  Case test;
  EXPECT_EQ(test.code(pair("ab", "")), "E-IN-EMPTY");
  EXPECT_EQ(test.code(text("")), "E-IN-EMPTY");
  EXPECT_EQ(test.code(pair("a", "b"), false), "E-TOK-NONE");
  EXPECT_EQ(test.code(text("a"), false), "E-TOK-NONE");
  EXPECT_EQ(test.code(pair_ids({600}, {1})), "E-IN-TOKEN");
  EXPECT_EQ(test.code(pair_ids({1}, {-1})), "E-IN-TOKEN");
  test.limits.kv_tokens = 10;
  EXPECT_EQ(test.code(pair_ids(Tokens(6, 1), Tokens(5, 2))), "");
  EXPECT_EQ(test.code(pair_ids(Tokens(7, 1), Tokens(5, 2))), "E-MEM-LINE");
  EXPECT_EQ(test.code(text("0123456789")), "");
  EXPECT_EQ(test.code(text("0123456789a")), "E-MEM-LINE");
}

TEST(ScorePreparer, WindowsScoreEveryTokenOnceAndTheLastIsFilledWithContext) {
  Case test;
  std::string letters;
  for (int i = 0; i < 45; ++i) letters += static_cast<char>('A' + i);
  ASSERT_EQ(test.code(text(letters)), "");
  ASSERT_EQ(test.prepared.tasks.size(), 3U);
  EXPECT_EQ(test.prepared.tasks[0].tokens.front(), kBos);
  EXPECT_EQ(test.prepared.tasks[1].tokens.front(), 'A' + 19);
  EXPECT_EQ(test.prepared.tasks[2].tokens.front(), 'A' + 24);
  Tokens scored;
  for (const ScoreTask& task : test.prepared.tasks) {
    EXPECT_EQ(task.first_scored, &task == &test.prepared.tasks[2] ? 16 : 1);
    EXPECT_EQ(task.computed_tokens(), 20);
    scored.insert(scored.end(), task.tokens.begin() + task.first_scored, task.tokens.end());
  }
  EXPECT_EQ(scored, test.prepared.scored);
  EXPECT_EQ(scored, JoiningTokenizer().encode(letters, {.add_special = false}));
}

}  // namespace
}  // namespace triphase
