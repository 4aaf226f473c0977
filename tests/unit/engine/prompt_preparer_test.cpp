#include "runtime/job/prompt_preparer.h"

#include <gtest/gtest.h>

#include "tests/support/tiny_tokenizer.h"

namespace triphase {
namespace {

class BosTokenizer final : public Tokenizer {
 public:
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text,
                                            const EncodeOptions& options) const override {
    auto ids = bytes_.encode(text, options);
    if (options.add_special) ids.insert(ids.begin(), 7);
    return ids;
  }
  [[nodiscard]] std::unique_ptr<TextDecoder> new_decoder(bool skip) const override {
    return bytes_.new_decoder(skip);
  }
  [[nodiscard]] std::string token_bytes(TokenId id) const override {
    return bytes_.token_bytes(id);
  }
  [[nodiscard]] bool is_special(TokenId id) const override { return id == 7; }
  [[nodiscard]] std::int64_t vocab_size() const override { return 257; }
  [[nodiscard]] std::optional<TokenId> bos() const override { return 7; }
  [[nodiscard]] std::string_view kind() const override { return "bytes with bos"; }

 private:
  ByteTokenizer bytes_;
};

struct Case {
  ModelConfig config;
  ByteTokenizer tokenizer;
  BosTokenizer bos_tokenizer;
  PromptPreparer::Limits limits{.context = 20, .kv_tokens = 20};

  Case() { config.vocab_size = 257; }

  std::string code(Request& request, const Tokenizer* used) {
    const auto error = PromptPreparer(config, used, limits).prepare(request);
    return error ? error->code : "";
  }
};

Request text_request(const std::string& text, std::int64_t max_tokens = 4) {
  Request request;
  request.text = text;
  request.sampling.max_tokens = max_tokens;
  return request;
}

Request id_request(std::vector<TokenId> ids) {
  Request request;
  request.prompt_form = PromptForm::kTokens;
  request.tokens = std::move(ids);
  request.sampling.max_tokens = 4;
  return request;
}

TEST(PromptPreparer, TokenizesText) {
  Case c;
  Request request = text_request("abc");
  EXPECT_EQ(c.code(request, &c.tokenizer), "");
  EXPECT_EQ(request.tokens, (std::vector<TokenId>{'a', 'b', 'c'}));
  EXPECT_EQ(c.code(request, nullptr), "E-TOK-NONE");
  Request templated = text_request("abc");
  templated.add_special = false;
  EXPECT_EQ(c.code(templated, &c.bos_tokenizer), "");
  EXPECT_EQ(templated.tokens, (std::vector<TokenId>{'a', 'b', 'c'})) << "no BOS beside its own";
}

TEST(PromptPreparer, ChatsNeedATemplateAndItsSpecialTokens) {
  Case c;
  Request chat = text_request(R"({"messages":[]})");
  chat.prompt_form = PromptForm::kChat;
  const auto error = PromptPreparer(c.config, &c.tokenizer, c.limits).prepare(chat);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code, "E-IN-CHAT");
  EXPECT_EQ(error->param, "messages");
  EXPECT_NE(error->message.find("has no chat template"), std::string::npos);
  c.limits.no_special = true;
  const auto plain = PromptPreparer(c.config, &c.tokenizer, c.limits).prepare(chat);
  EXPECT_NE(plain->message.find("--no-special"), std::string::npos);
}

TEST(PromptPreparer, ChecksTokenIds) {
  Case c;
  Request good = id_request({0, 256});
  Request high = id_request({0, 257});
  Request low = id_request({-1});
  EXPECT_EQ(c.code(good, nullptr), "");
  EXPECT_EQ(c.code(high, nullptr), "E-IN-TOKEN");
  EXPECT_EQ(c.code(low, nullptr), "E-IN-TOKEN");
  good.sampling.stop = {"x"};
  EXPECT_EQ(c.code(good, nullptr), "E-TOK-NONE") << "stop strings need a tokenizer";
}

TEST(PromptPreparer, EmptyPromptsStartFromBosOrFail) {
  Case c;
  Request empty = id_request({});
  EXPECT_EQ(c.code(empty, &c.tokenizer), "E-IN-EMPTY");
  EXPECT_EQ(c.code(empty, &c.bos_tokenizer), "");
  EXPECT_EQ(empty.tokens, (std::vector<TokenId>{7}));
  c.config.bos_id = 9;
  Request no_tokenizer = id_request({});
  EXPECT_EQ(c.code(no_tokenizer, nullptr), "");
  EXPECT_EQ(no_tokenizer.tokens, (std::vector<TokenId>{9}));
}

TEST(PromptPreparer, ContextIsPromptAndCompletionTogether) {
  Case c;
  Request fits = text_request(std::string(16, 'x'));
  EXPECT_EQ(c.code(fits, &c.tokenizer), "");
  Request too_long = text_request(std::string(17, 'x'));
  EXPECT_EQ(c.code(too_long, &c.tokenizer), "E-IN-CONTEXT");
  Request greedy = text_request("x", 20);
  EXPECT_EQ(c.code(greedy, &c.tokenizer), "E-IN-CONTEXT");
}

// A sparse method on a model whose every layer has a window of 20 tokens.
TEST(PromptPreparer, LinesBeyondTheWindowHearOfDenseAttentionWhereItTakesThem) {
  Case c;
  c.limits.window.dense_context = 30;
  const auto message = [&](Request request) {
    return PromptPreparer(c.config, &c.tokenizer, c.limits).prepare(request).value().message;
  };
  EXPECT_EQ(
      message(text_request(std::string(26, 'x'))),
      "prompt: 26 tokens and max_tokens 4 make 30, expected at most 20 (the sliding window of "
      "every layer); hint: --attention dense takes it; --truncate=left keeps the prompt's "
      "end");
  EXPECT_EQ(message(text_request("x", 29)),
            "prompt: 1 token and max_tokens 29 make 30, expected at most 20 (the sliding window of "
            "every layer); hint: --attention dense takes it; lower max_tokens");
  EXPECT_EQ(
      message(text_request(std::string(27, 'x'))),
      "prompt: 27 tokens and max_tokens 4 make 31, expected at most 20 (the sliding window of "
      "every layer); hint: --truncate=left keeps the prompt's end");
}

TEST(PromptPreparer, TruncatesWhereAsked) {
  Case c;
  c.limits.truncate = Truncate::kLeft;
  Request left = text_request("abcdefghijklmnopqrst");
  EXPECT_EQ(c.code(left, &c.tokenizer), "");
  EXPECT_EQ(left.tokens.size(), 16u);
  EXPECT_EQ(left.tokens.front(), 'e');
  Request left_bos = text_request("abcdefghijklmnopqrst");
  EXPECT_EQ(c.code(left_bos, &c.bos_tokenizer), "");
  EXPECT_EQ(left_bos.tokens.size(), 16u);
  EXPECT_EQ(left_bos.tokens[0], 7) << "the first token stays";
  EXPECT_EQ(left_bos.tokens[1], 'f');
  c.limits.truncate = Truncate::kRight;
  Request right = text_request("abcdefghijklmnopqrst");
  EXPECT_EQ(c.code(right, &c.tokenizer), "");
  EXPECT_EQ(right.tokens.back(), 'p');
}

TEST(PromptPreparer, PutsAFixedContextInFrontAndKeepsOneBos) {
  Case c;
  const std::vector<TokenId> context = {7, 100, 101};
  c.limits.fixed_context = context;
  Request text = text_request("ab");
  EXPECT_EQ(c.code(text, &c.bos_tokenizer), "");
  EXPECT_EQ(text.tokens, (std::vector<TokenId>{7, 100, 101, 'a', 'b'}));
  Request ids = id_request({7, 5, 7});
  EXPECT_EQ(c.code(ids, &c.bos_tokenizer), "");
  EXPECT_EQ(ids.tokens, (std::vector<TokenId>{7, 100, 101, 5, 7})) << "only the leading one goes";
  Request plain = text_request("ab");
  EXPECT_EQ(c.code(plain, &c.tokenizer), "");
  EXPECT_EQ(plain.tokens, (std::vector<TokenId>{7, 100, 101, 'a', 'b'}));
  Request empty = id_request({});
  EXPECT_EQ(c.code(empty, &c.bos_tokenizer), "") << "the context alone is a prompt";
  EXPECT_EQ(empty.tokens, context);
  c.config.bos_id = 9;
  Request by_config = id_request({9, 1});
  EXPECT_EQ(c.code(by_config, nullptr), "");
  EXPECT_EQ(by_config.tokens, (std::vector<TokenId>{7, 100, 101, 1}));
  // 20 tokens in all: 3 of the context, 4 to generate.
  Request fits = text_request(std::string(13, 'x'));
  EXPECT_EQ(c.code(fits, &c.bos_tokenizer), "");
  EXPECT_EQ(fits.tokens.size(), 16U);
  Request long_text = text_request(std::string(14, 'x'));
  EXPECT_EQ(c.code(long_text, &c.bos_tokenizer), "E-IN-CONTEXT");
  c.limits.truncate = Truncate::kLeft;
  Request cut = text_request("abcdefghijklmno");
  EXPECT_EQ(c.code(cut, &c.bos_tokenizer), "");
  EXPECT_EQ(cut.tokens.size(), 16U);
  EXPECT_EQ(cut.tokens[2], 101);
  EXPECT_EQ(cut.tokens[3], 'c') << "only the line's own tokens are cut";
  c.limits.kv_tokens = 10;
  Request large = text_request("abcdef");
  EXPECT_EQ(c.code(large, &c.bos_tokenizer), "E-MEM-LINE");
}

TEST(PromptPreparer, RefusesLinesThatDoNotFitAlone) {
  Case c;
  c.limits.kv_tokens = 8;
  Request fits = text_request("abcde");
  Request large = text_request("abcdef");
  EXPECT_EQ(c.code(fits, &c.tokenizer), "") << "the last token's KV is never stored";
  EXPECT_EQ(c.code(large, &c.tokenizer), "E-MEM-LINE");
}

}  // namespace
}  // namespace triphase
