// One line of a request file of `triphase score`, and its record.

#include "runtime/job/score_line.h"

#include <gtest/gtest.h>

#include "runtime/job/output_record.h"
#include "runtime/job/prompt_line.h"

namespace triphase {
namespace {

PromptLineRules rules() {
  PromptLineRules made;
  made.job = JobKind::kScore;
  return made;
}

Request good(std::string_view line) {
  const PromptLine parsed = parse_prompt_line(line, 7, rules());
  const BadLine* bad = std::get_if<BadLine>(&parsed);
  EXPECT_EQ(bad, nullptr) << (bad == nullptr ? "" : bad->error.message);
  return bad == nullptr ? std::get<Request>(parsed) : Request{};
}

BadLine bad(std::string_view line) {
  const PromptLine parsed = parse_prompt_line(line, 7, rules());
  EXPECT_TRUE(std::holds_alternative<BadLine>(parsed)) << line;
  return std::holds_alternative<BadLine>(parsed) ? std::get<BadLine>(parsed) : BadLine{};
}

TEST(ScoreLine, ContextAndContinuation) {
  const Request words = good(R"({"id": 3, "context": "a", "continuation": " b", "prompt": 1})");
  EXPECT_EQ(words.score_form, ScoreForm::kContinuation);
  EXPECT_EQ(words.id, "3");
  EXPECT_TRUE(words.id_is_number);
  EXPECT_EQ(words.text, "a");
  EXPECT_EQ(words.continuation, " b");
  const Request ids = good(R"({"context_tokens": [], "continuation_tokens": [4, 5]})");
  EXPECT_EQ(ids.prompt_form, PromptForm::kTokens);
  EXPECT_TRUE(ids.tokens.empty());
  EXPECT_EQ(ids.continuation_tokens, (std::vector<TokenId>{4, 5}));
}

TEST(ScoreLine, WholeTexts) {
  const Request words = good(R"({"id": "x", "text": "a b"})");
  EXPECT_EQ(words.score_form, ScoreForm::kRolling);
  EXPECT_EQ(words.text, "a b");
  const Request ids = good(R"({"text_tokens": [9], "text": null})");
  EXPECT_EQ(ids.prompt_form, PromptForm::kTokens);
  EXPECT_EQ(ids.tokens, (std::vector<TokenId>{9}));
}

TEST(ScoreLine, EverythingElseIsAnErrorThatKeepsTheId) {
  struct Wrong {
    const char* line;
    const char* code;
  };
  for (const Wrong& wrong : {
           Wrong{R"({"id": "q"})", "E-IN-FIELD"},
           Wrong{R"({"id": "q", "context": "a"})", "E-IN-FIELD"},
           Wrong{R"({"id": "q", "continuation": "a"})", "E-IN-FIELD"},
           Wrong{R"({"id": "q", "prompt": "a"})", "E-IN-FIELD"},
           Wrong{R"({"id": "q", "text": "a", "continuation": "b"})", "E-IN-FIELD"},
           Wrong{R"({"id": "q", "text": "a", "text_tokens": [1]})", "E-IN-FIELD"},
           Wrong{R"({"id": "q", "context": "a", "continuation_tokens": [1]})", "E-IN-FIELD"},
           Wrong{R"({"id": "q", "context": 5, "continuation": "a"})", "E-IN-TYPE"},
           Wrong{R"({"id": "q", "context": "a", "continuation": ["a"]})", "E-IN-TYPE"},
           Wrong{R"({"id": "q", "text": [1]})", "E-IN-TYPE"},
           Wrong{R"({"id": "q", "text_tokens": "a"})", "E-IN-TYPE"},
           Wrong{R"({"id": "q", "text_tokens": [1.5]})", "E-IN-TOKEN"},
           Wrong{R"({"id": "q", "text_tokens": [-1]})", "E-IN-TOKEN"},
           Wrong{"{\"id\": \"q\", \"text\": \"\xff\"}", "E-IN-UTF8"},
       }) {
    const BadLine line = bad(wrong.line);
    EXPECT_EQ(line.error.code, wrong.code) << wrong.line;
    EXPECT_EQ(line.id, "q") << wrong.line;
    EXPECT_EQ(line.line_form, LineForm::kSimple);
  }
  EXPECT_EQ(bad("[1]").error.code, "E-IN-TYPE");
  EXPECT_EQ(bad(R"({"text": "a")").error.code, "E-IN-JSON");
  EXPECT_EQ(bad(R"({"id": [], "text": "a"})").error.code, "E-IN-ID");
}

TEST(ScoreLine, RecordIsReadBackByResume) {
  const Request request = good(R"({"id": "x", "text": "a b"})");
  Completion completion;
  completion.index = 7;
  completion.tokens = {4, 5};
  completion.prompt_tokens = 1;
  completion.score = RequestScore{-3.5, false, {-1.5, -2.0}};
  EXPECT_EQ(record_line(request, completion),
            R"({"id":"x","index":7,"logprob":-3.5,"is_greedy":false,"tokens":[4,5],)"
            R"("token_logprobs":[-1.5,-2],"usage":{"prompt_tokens":1,"completion_tokens":2}})");
  completion.score->token_logprobs.clear();
  const std::string record = record_line(request, completion);
  EXPECT_EQ(record.find("token_logprobs"), std::string::npos);
  const std::optional<RecordFacts> facts = read_record(record);
  ASSERT_TRUE(facts.has_value());
  EXPECT_EQ(facts->index, 7U);
  EXPECT_EQ(facts->error_code, "");
}

}  // namespace
}  // namespace triphase
