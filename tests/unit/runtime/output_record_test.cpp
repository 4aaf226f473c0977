// Records in both forms: exact bytes for the format, and what resume reads back.

#include "runtime/job/output_record.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "runtime/job/record_ledger.h"
namespace triphase {
namespace {

Completion completion_of(std::uint64_t index) {
  Completion completion;
  completion.index = index;
  completion.text = "he said \"hi\"\n";
  completion.tokens = {5, 6};
  completion.finish_reason = FinishReason::kStop;
  completion.prompt_tokens = 3;
  return completion;
}

TEST(OutputRecord, Simple) {
  Request request;
  request.index = 4;
  request.id = "a\"b";
  EXPECT_EQ(record_line(request, completion_of(4)),
            R"({"id":"a\"b","index":4,"text":"he said \"hi\"\n","tokens":[5,6],)"
            R"("finish_reason":"stop","usage":{"prompt_tokens":3,"completion_tokens":2}})");
}

TEST(OutputRecord, SimpleWithoutIdTextOrWithNumber) {
  Request request;
  request.index = 4;
  Completion completion = completion_of(4);
  completion.text.reset();
  completion.finish_reason = FinishReason::kLength;
  EXPECT_EQ(record_line(request, completion),
            R"({"index":4,"tokens":[5,6],"finish_reason":"length",)"
            R"("usage":{"prompt_tokens":3,"completion_tokens":2}})");
  request.id = "17";
  request.id_is_number = true;
  EXPECT_TRUE(record_line(request, completion).starts_with(R"({"id":17,"index":4)"));
}

TEST(OutputRecord, SimpleLogprobs) {
  Request request;
  Completion completion = completion_of(0);
  completion.logprobs = {{5, -0.5F, {{5, -0.5F}, {9, -2.0F}}}, {6, -1.25F, {}}};
  EXPECT_NE(record_line(request, completion)
                .find(R"("logprobs":[{"token":5,"logprob":-0.5,"top":[[5,-0.5],[9,-2]]},)"
                      R"({"token":6,"logprob":-1.25,"top":[]}])"),
            std::string::npos);
}

TEST(OutputRecord, OpenAi) {
  Request request;
  request.index = 4;
  request.id = "r";
  request.line_form = LineForm::kOpenAi;
  request.served_model = "m";
  EXPECT_EQ(record_line(request, completion_of(4)),
            R"({"id":"batch_req_4","custom_id":"r","index":4,"response":{"status_code":200,)"
            R"("request_id":"req_4","body":{"id":"cmpl-4","object":"text_completion","created":0,)"
            R"("model":"m","choices":[{"index":0,"text":"he said \"hi\"\n","tokens":[5,6],)"
            R"("finish_reason":"stop","logprobs":null}],"usage":{"prompt_tokens":3,)"
            R"("completion_tokens":2,"total_tokens":5}}},"error":null})");
}

TEST(OutputRecord, OpenAiNamesTheJob) {
  Request request;
  request.index = 4;
  request.line_form = LineForm::kOpenAi;
  const std::string record = record_line(request, completion_of(4), {"0123", 1700000000});
  for (const char* text : {R"("id":"batch_req_0123_4")", R"("request_id":"req_0123_4")",
                           R"("id":"cmpl-0123-4")", R"("created":1700000000)"}) {
    EXPECT_NE(record.find(text), std::string::npos) << text;
  }
}

TEST(OutputRecord, OpenAiLogprobsHaveTheTokensText) {
  Request request;
  request.line_form = LineForm::kOpenAi;
  Completion completion = completion_of(0);
  completion.logprobs = {
      {5, -0.5F, {{5, -0.5F}, {9, -2.0F}, {8, -3.0F}}, {" he", " he", "x", "x"}, 0},
      {6, -1.25F, {}, {"\xE2\x82"}, 3}};
  EXPECT_NE(
      record_line(request, completion)
          .find(R"("logprobs":{"tokens":[" he","bytes:\\xe2\\x82"],"token_logprobs":[-0.5,-1.25],)"
                R"("top_logprobs":[{" he":-0.5,"x":-2},{"bytes:\\xe2\\x82":-1.25}],)"
                R"("text_offset":[0,3]})"),
      std::string::npos)
      << record_line(request, completion);
  completion.logprobs = {{5, -0.5F, {}}};
  EXPECT_NE(record_line(request, completion).find(R"("tokens":["token_id:5"])"), std::string::npos);
}

TEST(OutputRecord, OpenAiChat) {
  Request request;
  request.index = 4;
  request.line_form = LineForm::kOpenAi;
  request.prompt_form = PromptForm::kChat;
  request.served_model = "m";
  Completion completion = completion_of(4);
  completion.logprobs = {{5, -0.5F, {{9, -2.0F}}, {"h", "\xC3"}, 0}, {6, -1.0F, {}, {"i"}, 1}};
  EXPECT_EQ(record_line(request, completion, {"k", 7}),
            R"({"id":"batch_req_k_4","custom_id":null,"index":4,"response":{"status_code":200,)"
            R"("request_id":"req_k_4","body":{"id":"chatcmpl-k-4","object":"chat.completion",)"
            R"("created":7,"model":"m","choices":[{"index":0,"message":{"role":"assistant",)"
            R"("content":"he said \"hi\"\n","refusal":null},"tokens":[5,6],"finish_reason":"stop",)"
            R"("logprobs":{"content":[{"token":"h","bytes":[104],"logprob":-0.5,"top_logprobs":)"
            R"([{"token":"bytes:\\xc3","bytes":[195],"logprob":-2}]},{"token":"i","bytes":[105],)"
            R"("logprob":-1,"top_logprobs":[]}],"refusal":null}}],"usage":{"prompt_tokens":3,)"
            R"("completion_tokens":2,"total_tokens":5}}},"error":null})");
  EXPECT_TRUE(read_record(record_line(request, completion)).has_value());
  completion.reasoning = "hm";
  const std::string record = record_line(request, completion, {"k", 7});
  EXPECT_NE(record.find(R"(\n","reasoning_content":"hm","refusal":null})"), std::string::npos);
  request.line_form = LineForm::kSimple;
  EXPECT_NE(record_line(request, completion, {"k", 7}).find(R"(","reasoning":"hm","tokens":)"),
            std::string::npos);
}

TEST(OutputRecord, ListsOfPromptsHaveAChoiceEach) {
  Request request;
  request.index = 4;
  request.line_form = LineForm::kOpenAi;
  request.parts = 2;
  std::vector<Completion> completions(2, completion_of(4));
  completions[1].part = 1;
  completions[1].tokens = {7};
  const std::string record = record_line(request, completions);
  EXPECT_NE(record.find(R"({"index":1,"text":"he said \"hi\"\n","tokens":[7],)"),
            std::string::npos);
  EXPECT_NE(record.find(R"("usage":{"prompt_tokens":6,"completion_tokens":3,"total_tokens":9})"),
            std::string::npos);
  EXPECT_EQ(read_record(record)->error_code, "");
  completions[1].error = RecordError{"E-NUM-LOGITS", "m", "prompt"};
  const std::string failed = record_line(request, completions);
  EXPECT_NE(failed.find(R"("status_code":500)"), std::string::npos);
  EXPECT_NE(failed.find(R"("type":"server_error","param":"prompt")"), std::string::npos);
  EXPECT_EQ(read_record(failed)->error_code, "E-NUM-LOGITS");
}

TEST(OutputRecord, ErrorsShowInEveryPlaceReadersLook) {
  BadLine bad;
  bad.index = 9;
  bad.error = {"E-IN-JSON", "byte 1: x"};
  EXPECT_EQ(record_line(bad), R"({"index":9,"error":{"code":"E-IN-JSON","message":"byte 1: x"}})");
  bad.line_form = LineForm::kOpenAi;
  bad.id = "r";
  EXPECT_EQ(record_line(bad),
            R"({"id":"batch_req_9","custom_id":"r","index":9,"response":{"status_code":400,)"
            R"("request_id":"req_9","body":{"error":{"message":"byte 1: x",)"
            R"("type":"invalid_request_error","param":null,"code":"E-IN-JSON"}}},)"
            R"("error":{"code":"E-IN-JSON","message":"byte 1: x"}})");
}

TEST(OutputRecord, IsOneLineOfJsonWhateverTheText) {
  Request request;
  request.index = 1;
  Completion completion = completion_of(1);
  completion.text = std::string("\0\x1b[2J\x7f\xff\n\r\xE2\x80\xA8", 12);
  for (const LineForm form : {LineForm::kSimple, LineForm::kOpenAi}) {
    request.line_form = form;
    const std::string line = record_line(request, completion);
    for (const char c : line) EXPECT_GE(static_cast<unsigned char>(c), 0x20);
    JsonProblem problem;
    EXPECT_TRUE(parse_json(line, problem).has_value()) << problem.found;
  }
}

TEST(OutputRecord, ReadsBackItsOwnRecordsOnly) {
  Request request;
  request.index = 12;
  for (const LineForm form : {LineForm::kSimple, LineForm::kOpenAi}) {
    request.line_form = form;
    const auto facts = read_record(record_line(request, completion_of(12)));
    ASSERT_TRUE(facts.has_value());
    EXPECT_EQ(facts->index, 12U);
    EXPECT_EQ(facts->error_code, "");
    BadLine bad;
    bad.index = 13;
    bad.line_form = form;
    bad.error = {"E-IN-JSON", "m"};
    const auto failed = read_record(record_line(bad));
    ASSERT_TRUE(failed.has_value());
    EXPECT_EQ(failed->index, 13U);
    EXPECT_EQ(failed->error_code, "E-IN-JSON");
  }
  const std::string whole = record_line(request, completion_of(12));
  std::string uncounted = whole;
  uncounted.replace(uncounted.find("\"usage\""), 7, "\"usual\"");
  EXPECT_FALSE(read_record(uncounted).has_value()) << uncounted;
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_FALSE(read_record(std::string_view(whole).substr(0, bytes)).has_value()) << bytes;
  }
  for (const char* line :
       {"", "{}", "[]", "12", R"({"index": 3})", R"({"index": -1, "tokens": []})",
        R"({"index": "3", "tokens": []})", R"({"index": 3, "error": {}})",
        R"({"index": 3, "error": "x"})", R"({"index": 3.0, "tokens": []})"}) {
    EXPECT_FALSE(read_record(line).has_value()) << line;
  }
}

TEST(RecordLedger, ForgetsOneOfTwoFailuresOfACode) {
  RecordLedger ledger(Shard{}, PromptFileFacts{});
  ledger.add(0, 0, "E-IN-JSON");
  ledger.add(1, 10, "E-IN-JSON");
  ledger.add(2, 20, "");
  ledger.remove(0);
  EXPECT_EQ(ledger.counts().failed_by_code.at("E-IN-JSON"), 1U);
  EXPECT_EQ(ledger.counts().total(), 2U);
  EXPECT_FALSE(ledger.finished(0));
  EXPECT_TRUE(ledger.failed(1));
  ledger.remove(1);
  EXPECT_TRUE(ledger.counts().failed_by_code.empty());
}

TEST(RecordFacts, WhatIsNoObjectIsNoRecord) {
  for (const char* text :
       {"", "x", "7", "[]", "null", "\"index\"", "{x}", "{\"index\":3,}", "{}{}"}) {
    EXPECT_FALSE(read_record(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace triphase
