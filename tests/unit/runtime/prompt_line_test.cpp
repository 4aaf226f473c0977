// One prompt line to a request or an error (bad-inputs section 4.4).

#include "runtime/job/prompt_line.h"

#include <gtest/gtest.h>

namespace triphase {
namespace {

Request good(std::string_view line, const PromptLineRules& rules = {}) {
  const PromptLine parsed = parse_prompt_line(line, 7, rules);
  const BadLine* bad = std::get_if<BadLine>(&parsed);
  EXPECT_EQ(bad, nullptr) << (bad == nullptr ? "" : bad->error.message);
  return bad == nullptr ? std::get<Request>(parsed) : Request{};
}

BadLine bad(std::string_view line, const PromptLineRules& rules = {}) {
  const PromptLine parsed = parse_prompt_line(line, 7, rules);
  EXPECT_TRUE(std::holds_alternative<BadLine>(parsed)) << line;
  return std::holds_alternative<BadLine>(parsed) ? std::get<BadLine>(parsed) : BadLine{};
}

std::string code(std::string_view line, const PromptLineRules& rules = {}) {
  return bad(line, rules).error.code;
}

TEST(PromptLine, SimpleText) {
  const Request request = good(R"({"id": "a", "prompt": "Once\u0000 upon", "unknown": [1]})");
  EXPECT_EQ(request.index, 7U);
  EXPECT_EQ(request.id, "a");
  EXPECT_FALSE(request.id_is_number);
  EXPECT_EQ(request.text, std::string("Once\0 upon", 10));
  EXPECT_EQ(request.line_form, LineForm::kSimple);
  EXPECT_EQ(request.sampling, SamplingParams{});
}

TEST(PromptLine, TokenIdsUnderEveryName) {
  for (const char* field : {"prompt", "prompt_tokens", "prompt_token_ids"}) {
    const Request request = good("{\"" + std::string(field) + "\": [5, 0, 2147483647]}");
    EXPECT_EQ(request.prompt_form, PromptForm::kTokens);
    EXPECT_EQ(request.tokens, (std::vector<TokenId>{5, 0, 2147483647}));
  }
}

TEST(PromptLine, LineParametersWinOverDefaults) {
  PromptLineRules rules;
  rules.defaults.max_tokens = 99;
  rules.defaults.stop = {"x"};
  rules.defaults.temperature = 0.5;
  const Request request = good(
      R"({"prompt": "a", "max_tokens": 3, "stop": ["b", "c"], "top_p": 0.5, "top_k": 4, "min_p": 0.1,
          "seed": 18446744073709551615, "logprobs": 2, "ignore_eos": true,
          "repetition_penalty": 1.5, "temperature": null})",
      rules);
  EXPECT_EQ(request.sampling.max_tokens, 3);
  EXPECT_EQ(request.sampling.stop, (std::vector<std::string>{"b", "c"}));
  EXPECT_DOUBLE_EQ(request.sampling.temperature, 0.5);  // null means not given
  EXPECT_DOUBLE_EQ(request.sampling.top_p, 0.5);
  EXPECT_EQ(request.sampling.top_k, 4);
  EXPECT_EQ(request.sampling.seed, UINT64_MAX);
  EXPECT_EQ(request.sampling.logprobs, 2);
  EXPECT_TRUE(request.sampling.ignore_eos);
  EXPECT_TRUE(request.add_special);
  EXPECT_FALSE(good(R"({"prompt": "a", "add_special_tokens": false})").add_special);
  EXPECT_EQ(good(R"({"prompt": "a", "stop": "one"})").sampling.stop,
            std::vector<std::string>{"one"});
}

TEST(PromptLine, NullPromptsAndWholeNumbersWithAPointAreTaken) {
  const Request request =
      good(R"({"prompt": null, "prompt_tokens": [1, 2.0], "max_tokens": 8.0, "seed": 3e0})");
  EXPECT_EQ(request.tokens, (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(request.sampling.max_tokens, 8);
  EXPECT_EQ(request.sampling.seed, 3U);
  EXPECT_NE(bad(R"({"prompt": "a", "max_tokens": 8.5})").error.message.find("8.5"),
            std::string::npos);
  EXPECT_EQ(good(R"({"prompt": null, "messages": [{"role": "user"}]})").prompt_form,
            PromptForm::kChat);
}

TEST(PromptLine, MaxTokensHasOtherNamesElsewhere) {
  for (const char* name : {"max_tokens", "max_new_tokens", "max_completion_tokens"}) {
    const std::string field = "\"" + std::string(name) + "\": ";
    EXPECT_EQ(good(R"({"prompt": "a", )" + field + "5}").sampling.max_tokens, 5);
    EXPECT_NE(bad(R"({"prompt": "a", )" + field + "0}").error.message.find(name),
              std::string::npos);
  }
  EXPECT_EQ(code(R"({"prompt": "a", "max_tokens": 5, "max_new_tokens": 5})"), "E-IN-FIELD");
}

TEST(PromptLine, FieldsThatNobodyKnowsAreNamed) {
  using Names = std::vector<std::string>;
  EXPECT_TRUE(good(R"({"prompt": "a", "add_special_tokens": false})").ignored_fields.empty());
  EXPECT_EQ(good(R"({"prompt": "a", "stream": true, "answer": 3, "n": 1})").ignored_fields,
            (Names{"stream", "answer"}));
  EXPECT_EQ(good(R"({"custom_id": "a", "extra": 1, "body": {"prompt": "a", "user": "u",
                     "response_format": {"type": "text"}}})")
                .ignored_fields,
            (Names{"extra", "body.user"}));
  EXPECT_EQ(code(R"({"prompt": "a", "response_format": {"type": "json_object"}})"), "E-IN-PARAM");
}

TEST(PromptLine, NumericIdsAreKept) {
  const Request request = good(R"({"id": 18446744073709551615, "prompt": "a"})");
  EXPECT_EQ(request.id, "18446744073709551615");
  EXPECT_TRUE(request.id_is_number);
}

TEST(PromptLine, OpenAiBatch) {
  const Request request = good(
      R"({"custom_id": "r-1", "method": "POST", "url": "/v1/completions",
          "body": {"model": "m", "prompt": "hello", "max_tokens": 2, "stream": true, "n": 1}})");
  EXPECT_EQ(request.line_form, LineForm::kOpenAi);
  EXPECT_EQ(request.id, "r-1");
  EXPECT_EQ(request.served_model, "m");
  EXPECT_EQ(request.text, "hello");
  EXPECT_EQ(request.sampling.max_tokens, 2);
}

TEST(PromptLine, ChatsKeepWhatTheTemplateGets) {
  const Request request = good(
      R"({"id": 1, "messages": [{"role": "user", "content": "h\u00fc"}], "tools": [{"a": 1.5}],
          "chat_template_kwargs": {"mood": "calm"}, "logprobs": 3, "max_completion_tokens": 4})");
  EXPECT_EQ(request.prompt_form, PromptForm::kChat);
  EXPECT_EQ(request.line_form, LineForm::kSimple);
  EXPECT_FALSE(request.add_special);
  EXPECT_EQ(request.text,
            "{\"messages\":[{\"role\":\"user\",\"content\":\"h\xC3\xBC\"}],"
            "\"tools\":[{\"a\":1.5}],\"chat_template_kwargs\":{\"mood\":\"calm\"}}");
  EXPECT_EQ(request.sampling.logprobs, 3);
  EXPECT_EQ(request.sampling.max_tokens, 4);
  EXPECT_TRUE(request.ignored_fields.empty());
}

TEST(PromptLine, OpenAiChat) {
  const auto line = [](const std::string& more) {
    return R"({"custom_id": "r", "url": "/v1/chat/completions", "body": {"messages":
               [{"role": "user", "content": "a"}])" +
           more + "}}";
  };
  const Request request = good(line(R"(, "logprobs": true, "top_logprobs": 2)"));
  EXPECT_EQ(request.prompt_form, PromptForm::kChat);
  EXPECT_EQ(request.line_form, LineForm::kOpenAi);
  EXPECT_EQ(request.sampling.logprobs, 2);
  EXPECT_EQ(good(line(R"(, "logprobs": true)")).sampling.logprobs, 0);
  EXPECT_EQ(good(line(R"(, "logprobs": false)")).sampling.logprobs, -1);
  EXPECT_EQ(bad(line(R"(, "top_p": 7)")).error.param, "top_p");
  EXPECT_EQ(bad(line(R"(, "prompt": "a")")).error.param, "messages");
}

TEST(PromptLine, OpenAiListsOfPrompts) {
  const Request texts = good(R"({"body": {"prompt": ["a", "b"]}})");
  ASSERT_EQ(texts.listed.size(), 2U);
  EXPECT_EQ(texts.prompt_form, PromptForm::kText);
  EXPECT_EQ(texts.listed[1].text, "b");
  const Request ids = good(R"({"body": {"prompt": [[1, 2], [3]]}})");
  ASSERT_EQ(ids.listed.size(), 2U);
  EXPECT_EQ(ids.prompt_form, PromptForm::kTokens);
  EXPECT_EQ(ids.listed[0].tokens, (std::vector<TokenId>{1, 2}));
  EXPECT_TRUE(good(R"({"body": {"prompt": [1, 2]}})").listed.empty());
}

TEST(PromptLine, IdsFormat) {
  PromptLineRules rules;
  rules.format = InputFormat::kIds;
  EXPECT_EQ(good("[1, 2, 3]", rules).tokens, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(code(R"({"prompt": "a"})", rules), "E-IN-TYPE");
  EXPECT_EQ(code("[1, -2]", rules), "E-IN-TOKEN");
}

struct Row {
  const char* name;
  std::string line;
  const char* code;
  const char* must_say;
};

class BadPromptLine : public ::testing::TestWithParam<Row> {};

TEST_P(BadPromptLine, SaysWhatIsWrong) {
  const BadLine line = bad(GetParam().line);
  EXPECT_EQ(line.error.code, GetParam().code);
  EXPECT_NE(line.error.message.find(GetParam().must_say), std::string::npos) << line.error.message;
  for (const char c : line.error.message) EXPECT_GE(static_cast<unsigned char>(c), 0x20);
  EXPECT_LT(line.error.message.size(), 700U);
}

std::string nested(int depth) {
  return "{\"prompt\": \"a\", \"x\": " + std::string(static_cast<std::size_t>(depth), '[') +
         std::string(static_cast<std::size_t>(depth), ']') + "}";
}

std::string many_stops() {
  std::string line = "{\"prompt\": \"a\", \"stop\": [\"0\"";
  for (int stop = 1; stop < 10000; ++stop) line += ",\"" + std::to_string(stop) + "\"";
  return line + "]}";
}

INSTANTIATE_TEST_SUITE_P(
    P, BadPromptLine,
    ::testing::Values(
        Row{"P6", "{\"prompt\": \"a\xff\"}", "E-IN-UTF8", "byte 14: invalid UTF-8 byte 0xff"},
        Row{"AddSpecial", R"({"prompt": "a", "add_special_tokens": 0})", "E-IN-PARAM",
            "add_special_tokens: 0, expected true or false"},
        Row{"P7NotJson", "prompt", "E-IN-JSON", "byte 1"},
        Row{"P7AText", "Hello", "E-IN-JSON",
            R"(hint: a line is a whole object, such as {"prompt": )"},
        Row{"P7OverManyLines", "{", "E-IN-JSON", "hint: a line is a whole object"},
        Row{"P7ALargeArray", R"([{"prompt": "a"}])", "E-IN-TYPE", "hint: jq -c .[] FILE"},
        Row{"P7Trailing", R"({"prompt": "a"} x)", "E-IN-JSON", "byte 17"},
        Row{"P7Array", "[1, 2]", "E-IN-TYPE", "array of 2, expected a JSON object"},
        Row{"P7Number", "12", "E-IN-TYPE", "12"},
        Row{"P7Nan", R"({"prompt": NaN})", "E-IN-JSON", ""},
        Row{"P8", R"({"id": "a"})", "E-IN-FIELD", "prompt, prompt_tokens or prompt_token_ids"},
        Row{"P8Two", R"({"prompt": "a", "prompt_tokens": [1]})", "E-IN-FIELD", "only one of"},
        Row{"P8Body", R"({"custom_id": "a", "body": {}})", "E-IN-FIELD", "body.prompt: missing"},
        Row{"P8NoBody", R"({"custom_id": "a", "url": "/v1/completions"})", "E-IN-FIELD",
            "body: missing"},
        Row{"P9Number", R"({"prompt": 12})", "E-IN-TYPE", "prompt: 12, expected a string"},
        Row{"P9Mixed", R"({"prompt": [1, "a"]})", "E-IN-TOKEN", "prompt[1]"},
        Row{"P9Null", R"({"prompt": null})", "E-IN-TYPE", "null"},
        Row{"P9Text", R"({"prompt_tokens": "a"})", "E-IN-TYPE", "an array of token ids"},
        Row{"P17Type", R"({"custom_id": 3, "body": {"prompt": "a"}})", "E-IN-ID", "custom_id: 3"},
        Row{"P17Long", "{\"prompt\": \"a\", \"id\": \"" + std::string(513, 'a') + "\"}", "E-IN-ID",
            "513 bytes"},
        Row{"P17Control", R"({"prompt": "a", "id": "a\u001b[2J"})", "E-IN-ID", "no control bytes"},
        Row{"P17Float", R"({"prompt": "a", "id": 1.5})", "E-IN-ID", "id: 1.5"},
        Row{"P18", nested(100), "E-IN-JSON", "nesting deeper than 64"},
        Row{"P19Zero", R"({"prompt": "a", "max_tokens": 0})", "E-IN-PARAM",
            "max_tokens: 0, expected an integer from 1"},
        Row{"P19Negative", R"({"prompt": "a", "max_tokens": -1})", "E-IN-PARAM", "max_tokens: -1"},
        Row{"P19Huge", R"({"prompt": "a", "max_tokens": 1000000000000})", "E-IN-PARAM",
            "max_tokens: 1000000000000"},
        Row{"P19Float", R"({"prompt": "a", "max_tokens": 3.5})", "E-IN-PARAM", "max_tokens: 3.5"},
        Row{"P19Temperature", R"({"prompt": "a", "temperature": -1})", "E-IN-PARAM",
            "temperature: -1"},
        Row{"P19Text", R"({"prompt": "a", "temperature": "hot"})", "E-IN-PARAM", "\"hot\""},
        Row{"P19TopP", R"({"prompt": "a", "top_p": 0})", "E-IN-PARAM", "top_p: 0"},
        Row{"P19Stops", many_stops(), "E-IN-PARAM", "array of 10000"},
        Row{"P19EmptyStop", R"({"prompt": "a", "stop": ""})", "E-IN-PARAM", "stop: 0 bytes"},
        Row{"P19N", R"({"prompt": "a", "n": 1000000})", "E-IN-PARAM", "n: 1000000, expected 1"},
        Row{"BestOf", R"({"prompt": "a", "best_of": 2})", "E-IN-PARAM", "best_of: 2, expected 1"},
        Row{"P19Seed", R"({"prompt": "a", "seed": -5})", "E-IN-PARAM", "seed: -5"},
        Row{"P19Logprobs", R"({"prompt": "a", "logprobs": 21})", "E-IN-PARAM", "logprobs: 21"},
        Row{"P19BigInt", R"({"prompt": "a", "top_k": 99999999999999999999})", "E-IN-PARAM",
            "top_k: 99999999999999999999"},
        Row{"Echo", R"({"prompt": "a", "echo": true})", "E-IN-PARAM", "echo"},
        Row{"Penalty", R"({"prompt": "a", "presence_penalty": 0.5})", "E-IN-PARAM",
            "not supported"},
        Row{"Bias", R"({"prompt": "a", "logit_bias": {"5": 1}})", "E-IN-PARAM", "logit_bias"},
        Row{"P20Negative", R"({"prompt_tokens": [1, -1]})", "E-IN-TOKEN", "prompt_tokens[1]: -1"},
        Row{"P20Float", R"({"prompt_tokens": [1.5]})", "E-IN-TOKEN", "prompt_tokens[0]: 1.5"},
        Row{"P20Huge", R"({"prompt_tokens": [2147483648]})", "E-IN-TOKEN", "2147483648"},
        Row{"P24", R"({"prompt": "\ud800"})", "E-IN-JSON", "byte"},
        Row{"Duplicate", R"({"prompt": "a", "prompt": "b"})", "E-IN-JSON", "duplicate key"},
        Row{"T19", R"({"messages": ["hi"]})", "E-IN-TYPE", "messages[0]"},
        Row{"T19None", R"({"messages": []})", "E-IN-TYPE", "messages"},
        Row{"T19Beside", R"({"messages": [{"role": "user"}], "prompt": "a"})", "E-IN-FIELD",
            "prompt beside it"},
        Row{"T19Variables", R"({"messages": [{"role": "user"}], "chat_template_kwargs": [1]})",
            "E-IN-PARAM", "chat_template_kwargs"},
        Row{"T19TopAlone", R"({"messages": [{"role": "user"}], "top_logprobs": 2})", "E-IN-PARAM",
            "logprobs true"},
        Row{"T19WrongUrl", R"({"url": "/v1/completions", "body": {"messages": [{"role": "u"}]}})",
            "E-IN-FIELD", "a prompt for /v1/completions"},
        Row{"T19Url", R"({"custom_id": "a", "url": "/v1/chat/completions", "body": {}})",
            "E-IN-FIELD", "body.messages"},
        Row{"ListMixed", R"({"body": {"prompt": ["a", [1]]}})", "E-IN-TYPE", "body.prompt[1]"},
        Row{"ListOfNativeLines", R"({"prompt": ["a", "b"]})", "E-IN-TOKEN", "prompt[0]"},
        Row{"Url", R"({"custom_id": "a", "url": "/v1/embeddings", "body": {"prompt": "a"}})",
            "E-IN-FIELD", "/v1/completions"},
        Row{"Method", R"({"custom_id": "a", "method": "GET", "body": {"prompt": "a"}})",
            "E-IN-FIELD", "POST"}),
    [](const auto& row) { return std::string(row.param.name); });

TEST(PromptLine, ErrorsKeepTheIdAndForm) {
  EXPECT_EQ(bad(R"({"id": "a", "prompt": 1})").id, "a");
  const BadLine openai = bad(R"({"custom_id": "a", "body": {"messages": []}})");
  EXPECT_EQ(openai.id, "a");
  EXPECT_EQ(openai.line_form, LineForm::kOpenAi);
  EXPECT_EQ(bad("{\"id\": \"a\", \"prompt\": \"\xff\"}").id, "a");
  EXPECT_FALSE(bad("{\"id\": \"\xff\", \"prompt\": \"a\"}").id.has_value());
  PromptLineRules rules;
  rules.fallback_form = LineForm::kOpenAi;
  EXPECT_EQ(bad("{", rules).line_form, LineForm::kOpenAi);
}

TEST(PromptLine, InvalidUtf8IsReplacedOnlyOnRequest) {
  PromptLineRules rules;
  rules.replace_invalid_utf8 = true;
  EXPECT_EQ(good("{\"prompt\": \"a\xff\"}", rules).text, "a\xEF\xBF\xBD");
}

TEST(PromptLine, OnlyNewlinesEndRecords) {
  EXPECT_EQ(good("{\"prompt\": \"a\xE2\x80\xA8 b\"}").text, "a\xE2\x80\xA8 b");
}

TEST(PromptLine, ManyValuesAreBounded) {
  std::string line = "{\"prompt_tokens\": [1";
  for (int count = 0; count < 4'000'000; ++count) line += ",1";
  EXPECT_EQ(code(line + "]}"), "E-IN-JSON");
}

}  // namespace
}  // namespace triphase
