// Answers in channels, as gpt-oss gives them, by tokens of their own.

#include "runtime/engine/answer_channels.h"

#include <gtest/gtest.h>

#include <array>

#include "runtime/engine/sequence.h"
#include "tests/support/tiny_tokenizer.h"

namespace triphase {
namespace {

// A token for each byte, and one for each marker that it was made with. Byte 1 is a blank and the
// beginning of a character, which the decoder holds back.
class ChannelTokenizer final : public Tokenizer {
 public:
  explicit ChannelTokenizer(std::size_t markers = kMarkers.size()) : markers_(markers) {}

  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override {
    std::vector<TokenId> ids;
    while (!text.empty()) {
      std::size_t at = 0;
      while (at < markers_ && !(options.parse_special && text.starts_with(kMarkers[at]))) ++at;
      const bool found = at < markers_;
      const TokenId byte = text[0] == '\1' ? kBegun : static_cast<unsigned char>(text[0]);
      ids.push_back(found ? static_cast<TokenId>(257 + at) : byte);
      text.remove_prefix(found ? kMarkers[at].size() : 1);
    }
    return ids;
  }
  std::unique_ptr<TextDecoder> new_decoder(bool) const override {
    class Decoder final : public TextDecoder {
     public:
      void push(TokenId id, std::string& out) override {
        if (id <= kBegun) out += id == kBegun ? ' ' : static_cast<char>(id);
        begun_ = id == kBegun;
      }
      void finish(std::string& out) override {
        if (begun_) out += "\uFFFD";
        begun_ = false;
      }

     private:
      bool begun_ = false;
    };
    return std::make_unique<Decoder>();
  }
  std::string token_bytes(TokenId id) const override { return {static_cast<char>(id)}; }
  bool is_special(TokenId id) const override { return id >= 257; }
  std::int64_t vocab_size() const override { return 300; }
  std::optional<TokenId> bos() const override { return std::nullopt; }
  std::string_view kind() const override { return "bytes"; }

 private:
  static constexpr TokenId kBegun = 256;
  static constexpr std::array<std::string_view, 5> kMarkers = {
      "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>"};
  std::size_t markers_;
};

const ChannelTokenizer kTokenizer;

std::optional<AnswerChannels> channels_of(std::string_view text,
                                          const Tokenizer& tokenizer = kTokenizer) {
  return answer_channels(tokenizer, kTokenizer.encode(text, {}));
}

TEST(AnswerChannels, FinalIsTheContentAndAnalysisTheReasoning) {
  const auto answer = channels_of(
      "<|channel|>analysis<|message|>They greet.<|end|><|start|>assistant"
      "<|channel|>final<|message|>Hello!");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->content, "Hello!");
  EXPECT_EQ(answer->reasoning, "They greet.");
}

TEST(AnswerChannels, WhateverLengthEndsTheAnswerAt) {
  for (const auto& [text, content, reasoning] :
       std::vector<std::array<std::string, 3>>{{"<|channel|>", "", ""},
                                               {"<|channel|>ana", "", ""},
                                               {"<|channel|>analysis<|message|>Let", "", "Let"},
                                               {"x<|channel|>final<|message|>", "", ""},
                                               {"<|channel|><|channel|>final<|message|>a", "a", ""},
                                               {"<|channel|>final<|message|>a<|end|>", "a", ""}}) {
    const auto answer = channels_of(text);
    ASSERT_TRUE(answer) << text;
    EXPECT_EQ(answer->content, content) << text;
    EXPECT_EQ(answer->reasoning, reasoning) << text;
  }
}

TEST(AnswerChannels, SeveralMessagesAreLinesAndCallsKeepTheirHeader) {
  const auto answer = channels_of(
      "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>"
      "Two.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>"
      "assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\":1}");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->reasoning, "One.\nTwo.");
  EXPECT_EQ(answer->content, "I look.\ncommentary to=functions.f json{\"a\":1}");
}

TEST(AnswerChannels, OtherAnswersAndOtherTokenizersHaveNone) {
  EXPECT_FALSE(channels_of("Hello!"));
  EXPECT_FALSE(channels_of(""));
  EXPECT_FALSE(channels_of("<|channel|>final<|message|>a", ChannelTokenizer(3)));
  EXPECT_FALSE(channels_of("<|channel|>final<|message|>a", ByteTokenizer()));
}

// What drawing these tokens, then nothing more, makes of a prompt.
Completion completion_of(std::string_view text, PromptForm form, std::vector<std::string> stop) {
  Request request;
  request.prompt_form = form;
  request.tokens = {1, 2};
  const std::vector<TokenId> tokens = kTokenizer.encode(text, {});
  request.sampling = {.max_tokens = static_cast<std::int64_t>(tokens.size()),
                      .stop = std::move(stop)};
  Sequence sequence(request, 0, {}, &kTokenizer);
  for (const TokenId token : tokens) {
    if (sequence.finished()) break;
    SampleResult result;
    result.token = token;
    result.exp_sum = 1.0;
    sequence.sample_next(result);
  }
  EXPECT_TRUE(sequence.finished());
  return sequence.take_completion();
}

TEST(AnswerChannels, AChatsCompletionIsDividedAndAPromptsIsNot) {
  for (const PromptForm form : {PromptForm::kChat, PromptForm::kText}) {
    const Completion completion = completion_of(
        "<|channel|>analysis<|message|>Hm.<|end|><|channel|>final<|message|>Hi!!", form, {"!!"});
    const bool chat = form == PromptForm::kChat;
    EXPECT_EQ(completion.text, chat ? "Hi" : "analysisHm.finalHi");
    EXPECT_EQ(completion.reasoning, chat ? std::optional<std::string>("Hm.") : std::nullopt);
  }
}

TEST(AnswerChannels, AStopStringEndsAndCutsTheTextThatItIsIn) {
  const Completion thought =
      completion_of("<|channel|>analysis<|message|>One!! two", PromptForm::kChat, {"!!"});
  EXPECT_EQ(thought.reasoning, "One");
  EXPECT_EQ(thought.text, "");
  EXPECT_EQ(thought.finish_reason, FinishReason::kStop);
  const Completion begun =
      completion_of("<|channel|>final<|message|>Hi\1", PromptForm::kChat, {" "});
  EXPECT_EQ(begun.text, "Hi");
  // Earlier texts keep theirs, and so does a line end that joins two of them.
  const Completion joined = completion_of(
      "<|channel|>commentary<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b",
      PromptForm::kChat, {"\n"});
  EXPECT_EQ(joined.text, "a\nb");
  EXPECT_EQ(joined.finish_reason, FinishReason::kLength);
}

TEST(AnswerChannels, StopStringsAreNotLookedForInHeaders) {
  const Completion completion = completion_of(
      "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi "
      "final",
      PromptForm::kChat, {"assistant", "analysis", "final", "lHi"});
  EXPECT_EQ(completion.reasoning, "Hm.");
  EXPECT_EQ(completion.text, "Hi ");
}

}  // namespace
}  // namespace triphase
