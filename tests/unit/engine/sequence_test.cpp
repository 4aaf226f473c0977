#include "runtime/engine/sequence.h"

#include <gtest/gtest.h>

#include <cmath>

#include "models/config/model_config.h"
#include "runtime/engine/request_key.h"
#include "tests/support/paths.h"
#include "tests/support/tiny_tokenizer.h"

namespace triphase {
namespace {

const std::vector<std::int32_t> kEosIds = {ByteTokenizer::kEos};

// Of two likeliest tokens the drawn one is the second.
SampleResult drawn(TokenId token) {
  SampleResult result;
  result.token = token;
  result.logit = std::log(0.25F);
  result.peak = std::log(0.5F);
  result.exp_sum = 2.0;
  result.count = 2;
  result.ids[0] = 1000;
  result.logits[0] = result.peak;
  result.ids[1] = token;
  result.logits[1] = result.logit;
  return result;
}

// Feeds `text` (then the end-of-sequence token) as if the model had chosen exactly these bytes.
Completion run(const std::string& text, const SamplingParams& params, bool with_tokenizer = true) {
  const ByteTokenizer tokenizer;
  Request request;
  request.index = 3;
  request.tokens = {1, 2};
  request.sampling = params;
  Sequence sequence(request, 0, kEosIds, with_tokenizer ? &tokenizer : nullptr);
  for (std::size_t i = 0; !sequence.finished(); ++i) {
    const TokenId token =
        i < text.size() ? static_cast<unsigned char>(text[i]) : ByteTokenizer::kEos;
    sequence.sample_next(drawn(token));
  }
  return sequence.take_completion();
}

SamplingParams with_stop(std::vector<std::string> stop) {
  SamplingParams params;
  params.max_tokens = 100;
  params.stop = std::move(stop);
  return params;
}

// A tokenizer that judges runs of bytes as a whole: neither the prompt's line break nor a further
// token may come with the text.
TEST(Sequence, AStopStringOfBytesEndsWithItsToken) {
  Notes notes;
  ModelConfig config;
  config.vocab_size = 2048;
  const auto tokenizer = load_tokenizer(source_path("models/shipped/triphase-mha"), config, notes);
  const auto last_id = [&](std::string_view text) { return tokenizer->encode(text, {}).back(); };
  Request request;
  request.tokens = tokenizer->encode("a\n", {});
  request.sampling = {.max_tokens = 100, .stop = {"\n\n"}};
  Sequence sequence(request, 0, kEosIds, tokenizer.get());
  const std::vector<TokenId> drawn_ids = {last_id("\n"), last_id("b"), last_id("\n"),
                                          last_id("\n")};
  for (const TokenId id : drawn_ids) {
    ASSERT_FALSE(sequence.finished());
    sequence.sample_next(drawn(id));
  }
  ASSERT_TRUE(sequence.finished());
  const Completion completion = sequence.take_completion();
  EXPECT_EQ(completion.finish_reason, FinishReason::kStop);
  EXPECT_EQ(completion.tokens, drawn_ids);
  EXPECT_EQ(completion.text, "\n" + tokenizer->token_bytes(drawn_ids[1]));
}

TEST(Sequence, OpenAiLogprobsNameTokensAndWhereTheirTextBegins) {
  const ByteTokenizer tokenizer;
  Request request;
  request.line_form = LineForm::kOpenAi;
  request.part = 2;
  request.tokens = {1};
  request.sampling = {.max_tokens = 100, .stop = {"z"}, .logprobs = 2};
  Sequence sequence(request, 0, kEosIds, &tokenizer);
  for (const char byte : std::string("a\xC3\xBC"
                                     "bz")) {
    sequence.sample_next(drawn(static_cast<unsigned char>(byte)));
  }
  ASSERT_TRUE(sequence.finished());
  const Completion completion = sequence.take_completion();
  EXPECT_EQ(completion.part, 2U);
  std::vector<std::int64_t> offsets;
  for (const TokenLogprob& one : completion.logprobs) offsets.push_back(one.text_offset);
  EXPECT_EQ(offsets, (std::vector<std::int64_t>{0, 1, 1, 2, 3}));
  EXPECT_EQ(completion.text,
            "a\xC3\xBC"
            "b");
  ASSERT_EQ(completion.logprobs[0].pieces.size(), 3U);
  EXPECT_EQ(completion.logprobs[0].pieces[0], "a");
  EXPECT_EQ(completion.logprobs[0].pieces[2], "a");
  request.line_form = LineForm::kSimple;
  Sequence simple(request, 0, kEosIds, &tokenizer);
  simple.sample_next(drawn('z'));
  EXPECT_TRUE(simple.take_completion().logprobs[0].pieces.empty());
}

// Its decoder judges a run of bytes as a whole: only the token after it settles the run's text.
TEST(Sequence, OpenAiLogprobsFindTheTokenAfterARunOfBytes) {
  Notes notes;
  ModelConfig config;
  config.vocab_size = 2048;
  const auto tokenizer = load_tokenizer(source_path("models/shipped/triphase-mha"), config, notes);
  Request request;
  request.line_form = LineForm::kOpenAi;
  request.tokens = tokenizer->encode("a", {});
  std::vector<TokenId> ids = tokenizer->encode("\n\n\xE2\x82\xAC the", {.add_special = false});
  ids.erase(ids.begin());  // the blank in front of a text
  const TokenId the = ids.back();
  ids.insert(ids.end(), {ids[2], ids[2], the, the});  // no character
  request.sampling = {.max_tokens = static_cast<std::int64_t>(ids.size()), .logprobs = 0};
  Sequence sequence(request, 0, kEosIds, tokenizer.get());
  for (const TokenId id : ids) sequence.sample_next(drawn(id));
  const Completion completion = sequence.take_completion();
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(completion.text, "\n\n\xE2\x82\xAC the" + bad + bad + " the the");
  std::vector<std::int64_t> offsets;
  for (const TokenLogprob& one : completion.logprobs) offsets.push_back(one.text_offset);
  EXPECT_EQ(offsets, (std::vector<std::int64_t>{0, 1, 2, 2, 2, 3, 7, 7, 9, 13}));
}

TEST(Sequence, EndsAtEosWithoutIt) {
  const Completion completion = run("hello", with_stop({}));
  EXPECT_EQ(completion.text, "hello");
  EXPECT_EQ(completion.tokens.size(), 5u);
  EXPECT_EQ(completion.finish_reason, FinishReason::kStop);
  EXPECT_EQ(completion.prompt_tokens, 2);
  EXPECT_EQ(completion.index, 3u);
}

TEST(Sequence, EndsAtMaxTokens) {
  SamplingParams params;
  params.max_tokens = 3;
  const Completion completion = run("hello", params);
  EXPECT_EQ(completion.text, "hel");
  EXPECT_EQ(completion.finish_reason, FinishReason::kLength);
}

TEST(Sequence, IgnoreEosGoesOn) {
  SamplingParams params;
  params.max_tokens = 8;
  params.ignore_eos = true;
  const Completion completion = run("hello", params);
  EXPECT_EQ(completion.text, "hello") << "special tokens are not text";
  EXPECT_EQ(completion.tokens.size(), 8u);
  EXPECT_EQ(completion.finish_reason, FinishReason::kLength);
}

TEST(Sequence, StopStringsCutTheTextAtTheEarliestMatch) {
  const Completion completion = run("one two three", with_stop({"thr", "wo", "two t"}));
  EXPECT_EQ(completion.text, "one t");
  EXPECT_EQ(completion.finish_reason, FinishReason::kStop);
  EXPECT_EQ(completion.tokens.size(), 7u) << "tokens reach to where the stop string was complete";
}

TEST(Sequence, StopStringsMayHoldAnyCharacter) {
  EXPECT_EQ(run("a\xC3\xA9\xE2\x82\xAC!", with_stop({"\xE2\x82\xAC"})).text, "a\xC3\xA9");
}

TEST(Sequence, ACharacterCutByTheLimitBecomesAReplacementCharacter) {
  SamplingParams params;
  params.max_tokens = 2;
  EXPECT_EQ(run("a\xE2\x82\xAC", params).text, "a\xEF\xBF\xBD");
}

TEST(Sequence, WithoutTokenizerThereIsNoText) {
  const Completion completion = run("hi", with_stop({}), false);
  EXPECT_FALSE(completion.text.has_value());
  EXPECT_EQ(completion.tokens, (std::vector<TokenId>{'h', 'i'}));
}

TEST(Sequence, NonFiniteLogitsEndTheLineWithAnError) {
  Request request;
  request.tokens = {1};
  Sequence sequence(request, 0, kEosIds, nullptr);
  SampleResult result;
  result.finite = false;
  sequence.sample_next(result);
  ASSERT_TRUE(sequence.finished());
  EXPECT_EQ(sequence.take_completion().error->code, "E-NUM-LOGITS");
}

TEST(Sequence, GivenTokensAreScoredInAnyOrder) {
  const ScoreTask task{.index = 7, .tokens = {1, 2, 3, 4}, .first_scored = 2, .prefill_tokens = 9};
  Sequence sequence(task);
  EXPECT_EQ(sequence.prompt_tokens(), 3);
  EXPECT_EQ(sequence.given_tokens(), 3);
  EXPECT_EQ(sequence.max_kv_tokens(), 3) << "the last token is never computed";
  EXPECT_EQ(sequence.shareable_tokens().size(), 2U) << "the others' logits are wanted";
  EXPECT_FALSE(sequence.wants_logits(0));
  EXPECT_TRUE(sequence.wants_logits(1));
  const SampleRow row = sequence.score_row(2, 8);
  EXPECT_EQ(row.vocab, 8);
  EXPECT_EQ(row.score_token, 4);
  SampleResult even;
  even.exp_sum = 8.0;
  SampleResult sure;
  sure.token = 5;
  sure.logit = 1.0F;
  sure.peak = 1e4F;
  sure.exp_sum = 1.0;
  sequence.score(2, sure);
  sequence.score(1, even);
  const Completion completion = sequence.take_completion();
  EXPECT_EQ(completion.index, 7U);
  ASSERT_EQ(completion.scores.size(), 2U);
  EXPECT_DOUBLE_EQ(completion.scores[0].logprob, -std::log(8.0));
  EXPECT_DOUBLE_EQ(completion.scores[1].logprob, 1.0 - 1e4);
  EXPECT_EQ(completion.scores[1].best, 5);

  Sequence broken(task);
  broken.score(1, even);
  EXPECT_FALSE(broken.finished());
  SampleResult infinite;
  infinite.finite = false;
  broken.score(2, infinite);
  EXPECT_TRUE(broken.finished()) << "the last score is there";
  EXPECT_EQ(broken.take_completion().error->code, "E-NUM-LOGITS");

  Sequence decoded(ScoreTask{.tokens = {1, 2, 3}, .first_scored = 1, .prefill_tokens = 0});
  EXPECT_EQ(decoded.prompt_tokens(), 1) << "a line begins with a prompt";
  EXPECT_EQ(decoded.given_tokens(), 2);
}

TEST(Sequence, LogprobsComeWithEveryToken) {
  SamplingParams params;
  params.max_tokens = 3;
  params.logprobs = 2;
  const Completion completion = run("hello", params);
  ASSERT_EQ(completion.logprobs.size(), 3u);
  EXPECT_EQ(completion.logprobs[1].token, 'e');
  EXPECT_NEAR(completion.logprobs[1].logprob, std::log(0.25), 1e-6);
  ASSERT_EQ(completion.logprobs[1].top.size(), 2u);
  EXPECT_EQ(completion.logprobs[1].top[0].first, 1000);
  EXPECT_NEAR(completion.logprobs[1].top[0].second, std::log(0.5), 1e-6);
}

TEST(Sequence, ARowAsksForWhatTheLineSays) {
  Request request;
  request.index = 3;
  request.tokens = {1, 2};
  request.sampling = {.temperature = 0.7,
                      .top_p = 0.9,
                      .top_k = 40,
                      .min_p = 0.1,
                      .repetition_penalty = 1.2,
                      .logprobs = 5};
  Sequence sequence(request, 9, kEosIds, nullptr);
  sequence.sample_next(drawn(7));
  const SampleRow row = sequence.next_row(200);
  EXPECT_EQ(row.vocab, 200);
  EXPECT_EQ(row.temperature, 0.7);
  EXPECT_EQ(row.top_p, 0.9);
  EXPECT_EQ(row.top_k, 40);
  EXPECT_EQ(row.min_p, 0.1);
  EXPECT_EQ(row.repetition_penalty, 1.2);
  EXPECT_EQ(row.alternatives, 5);
  EXPECT_EQ(row.score_token, -1);
  EXPECT_EQ(row.key, request_key(request.sampling, 9, 3));
  EXPECT_EQ(row.position, 1U);
  EXPECT_EQ(std::vector<TokenId>(row.history.begin(), row.history.end()),
            (std::vector<TokenId>{1, 2, 7}));
}

TEST(Sequence, CountsTokensThatAreDrawnButNotKnown) {
  Request request;
  request.tokens = {1, 2};
  request.sampling = {.max_tokens = 3};
  Sequence sequence(request, 9, kEosIds, nullptr);
  EXPECT_TRUE(sequence.wants_logits(1));
  for (int drawn_tokens = 1; drawn_tokens <= 2; ++drawn_tokens) {
    sequence.await_token();
    EXPECT_EQ(sequence.awaited_tokens(), drawn_tokens);
    EXPECT_EQ(sequence.next_row(200).position, static_cast<std::uint64_t>(drawn_tokens));
    EXPECT_FALSE(sequence.wants_logits(drawn_tokens));
    EXPECT_TRUE(sequence.wants_logits(drawn_tokens + 1));
  }
  sequence.sample_next(drawn(7));
  EXPECT_EQ(sequence.awaited_tokens(), 1);
  EXPECT_EQ(sequence.next_row(200).position, 2U);
  sequence.await_token();
  sequence.sample_next(drawn(8));
  EXPECT_FALSE(sequence.finished());
  sequence.sample_next(drawn(9));
  EXPECT_TRUE(sequence.finished());
  EXPECT_EQ(sequence.take_completion().tokens, (std::vector<TokenId>{7, 8, 9}));
}

TEST(Sequence, APenaltyOfTheHistoryNeedsItsTokens) {
  Request request;
  request.tokens = {1, 2};
  EXPECT_FALSE(Sequence(request, 9, kEosIds, nullptr).draws_by_history());
  request.sampling.repetition_penalty = 1.1;
  EXPECT_TRUE(Sequence(request, 9, kEosIds, nullptr).draws_by_history());
}

}  // namespace
}  // namespace triphase
