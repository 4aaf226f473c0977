// Scores against values worked out here, in float64, from the tiny model's own logits.

#include "runtime/eval/eval.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"
#include "base/json.h"
#include "runtime/eval/generation_tasks.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_tokenizer.h"

namespace triphase::eval {
namespace {

constexpr std::int64_t kWindow = 24;

struct Fixture {
  ModelConfig config = tiny_config();
  TinyModel model{{}};
  ByteTokenizer tokenizer;
  Setup setup;

  Fixture() {
    setup.config = &config;
    setup.tokenizer = &tokenizer;
    setup.engine = &model.engine();
    setup.window = kWindow;
    setup.prefill_len = 7;
    setup.samples = 6;
    setup.kv_token_bytes = 10;
    setup.data_path = "data";
  }

  // Log-softmax in float64 of what the model says after tokens[..position], and its argmax.
  std::pair<std::vector<double>, TokenId> after(const std::vector<TokenId>& tokens,
                                                std::size_t position) {
    KvBook& book = model.kv().book();
    const auto size = static_cast<std::int64_t>(position) + 1;
    const std::vector<TokenId> head(tokens.begin(), tokens.begin() + size);
    const SequenceId id = book.admit(head, size, 99).sequence;
    std::vector<float> row;
    for (std::int64_t at = 0; at < size; ++at) {
      book.append(id, 1);
      const std::vector<BatchSegment> segments = {
          {.sequence = id, .first_row = 0, .count = 1, .first_position = at}};
      const std::vector<std::int32_t> wanted = {0};
      const ConstMatrix logits = model.model().forward(
          {std::span(head).subspan(static_cast<std::size_t>(at), 1), segments, wanted}, model.kv(),
          model.backend().stream());
      const auto* values = static_cast<const float*>(logits.data);
      row.assign(values, values + config.vocab_size);
    }
    model.kv().release(id);
    long double sum = 0.0L;
    for (const float logit : row) sum += std::exp(static_cast<long double>(logit));
    std::vector<double> logprobs;
    std::size_t best = 0;
    for (std::size_t token = 0; token < row.size(); ++token) {
      logprobs.push_back(static_cast<double>(static_cast<long double>(row[token]) - std::log(sum)));
      if (row[token] > row[best]) best = token;
    }
    return {logprobs, static_cast<TokenId>(best)};
  }
};

double number(const Row& row, std::string_view name) {
  for (const auto& [key, value] : row) {
    if (key != name) continue;
    if (const auto* real = std::get_if<double>(&value)) return *real;
    return static_cast<double>(std::get<std::int64_t>(value));
  }
  ADD_FAILURE() << "no " << name;
  return NAN;
}

std::string random_text(std::size_t size, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::string text;
  for (std::size_t i = 0; i < size; ++i) {
    text += random() % 5 == 0 ? ' ' : static_cast<char>('a' + random() % 26);
  }
  return text;
}

TEST(Mean, StandardErrorIsOfTheMean) {
  const Mean mean = mean_of({1.0, 2.0, 3.0, 6.0});
  EXPECT_DOUBLE_EQ(mean.mean, 3.0);
  EXPECT_DOUBLE_EQ(mean.standard_error, std::sqrt(14.0 / 3.0 / 4.0));
  EXPECT_EQ(mean_of({5.0}).standard_error, 0.0);
  EXPECT_EQ(mean_of({}).count, 0);
}

TEST(Perplexity, EveryDefinitionAgainstFloat64) {
  Fixture fixture;
  const std::string text = random_text(60, 1);  // two whole windows and one of 12 tokens
  const std::vector<Row> rows = perplexity(fixture.setup, text);
  ASSERT_EQ(rows.size(), 1U);
  double nats = 0.0;
  double count = 0.0;
  double words = 0.0;
  std::vector<double> means;
  for (std::size_t begin = 0; begin < text.size(); begin += kWindow) {
    const std::string window = text.substr(begin, kWindow);
    const std::vector<TokenId> tokens = fixture.tokenizer.encode(window, {});
    double sum = 0.0;
    for (std::size_t at = 8; at < tokens.size(); ++at) {
      sum -= fixture.after(tokens, at - 1).first[static_cast<std::size_t>(tokens[at])];
      const bool starts = window[at] != ' ' && (at == 8 || window[at - 1] == ' ');
      words += starts ? 1.0 : 0.0;
    }
    means.push_back(sum / static_cast<double>(tokens.size() - 8));
    nats += sum;
    count += static_cast<double>(tokens.size() - 8);
  }
  ASSERT_EQ(means.size(), 3U);
  const Row& row = rows.front();
  EXPECT_EQ(number(row, "tokens"), count);
  EXPECT_EQ(number(row, "bytes"), count);
  EXPECT_EQ(number(row, "words"), words);
  EXPECT_NEAR(number(row, "nats_per_token"), nats / count, 1e-12);
  EXPECT_NEAR(number(row, "perplexity") / std::exp(nats / count), 1.0, 1e-12);
  EXPECT_NEAR(number(row, "word_perplexity") / std::exp(nats / words), 1.0, 1e-12);
  EXPECT_NEAR(number(row, "byte_perplexity") / std::exp(nats / count), 1.0, 1e-12);
  EXPECT_NEAR(number(row, "bits_per_byte"), nats / count / std::log(2.0), 1e-12);
  EXPECT_NEAR(number(row, "perplexity_stderr"),
              std::exp(nats / count) * mean_of(means).standard_error, 1e-9);
  // Steps at positions 7..22 twice, 7..10 once; the step at position p reads p + 1 tokens.
  EXPECT_NEAR(number(row, "kv_bytes_per_token"),
              10.0 * (2.0 * (8 + 23) * 8.0 + (8 + 11) * 2.0) / 36.0, 1e-9);
  // All scored tokens came from decode steps.
  EXPECT_EQ(static_cast<double>(fixture.model.engine().stats().decoded_tokens), count);
}

TEST(Perplexity, ShortTextIsRefused) {
  Fixture fixture;
  try {
    (void)perplexity(fixture.setup, "12345678");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "E-IN-EVAL");
  }
  EXPECT_EQ(perplexity(fixture.setup, "123456789").size(), 1U);
  EXPECT_THROW((void)perplexity(fixture.setup, "\xff" + random_text(60, 1)), Error);
}

TEST(Repetition, CountsWhatGreedyDecodingContinues) {
  Fixture fixture;
  fixture.setup.window = 60;
  const RepetitionOptions options{.cue_len = 4, .answer_len = 5};
  const std::string text = random_text(200, 2);
  const Row row = repetition(fixture.setup, options, text).front();
  EXPECT_EQ(number(row, "samples"), 6.0);
  EXPECT_GE(number(row, "repetition"), 0.0);
  EXPECT_LE(number(row, "repetition"), 5.0);
  EXPECT_DOUBLE_EQ(number(row, "token_share"),
                   number(row, "repetition") / 5.0);                  // bytes are tokens
  EXPECT_EQ(fixture.model.engine().stats().decoded_tokens, 6U * 5U);  // all that was scored
  // The same seed draws the same samples.
  EXPECT_EQ(number(repetition(fixture.setup, options, text).front(), "repetition"),
            number(row, "repetition"));
  EXPECT_THROW((void)repetition(fixture.setup, {30, 30}, text), Error);
  EXPECT_THROW((void)repetition(fixture.setup, options, "too short"), Error);
}

TEST(Needle, HasARowForEveryCellAndOneForAll) {
  Fixture fixture;
  NeedleOptions options;
  options.lengths = {60, 100};
  options.depths = {0.0, 0.5, 1.0};
  options.needle = "{name}={value}. ";
  options.question = "{name}=";
  const std::vector<Row> rows = needle(fixture.setup, options, random_text(500, 3));
  ASSERT_EQ(rows.size(), 7U);
  double sum = 0.0;
  for (std::size_t cell = 0; cell < 6; ++cell) sum += number(rows[cell], "needle");
  EXPECT_NEAR(number(rows.back(), "needle"), sum / 6.0, 1e-12);
  EXPECT_EQ(number(rows.back(), "samples"), 36.0);
  // " 1234" is five tokens; the last one is never computed.
  EXPECT_EQ(number(rows.front(), "kv_bytes_per_token"), 10.0 * (55 + 56 + 57 + 58 + 59) / 5.0);
  options.lengths = {10};
  EXPECT_THROW((void)needle(fixture.setup, options, random_text(500, 3)), Error);
}

TEST(Choice, ComparesSumsRawAndPerCharacter) {
  Fixture fixture;
  const ScorePreparer preparer(fixture.config, &fixture.tokenizer,
                               {.context = 160, .kv_tokens = 160, .decodes = true});
  const auto score = [&](const std::string& context, const std::string& continuation) {
    const std::vector<TokenId> tokens = fixture.tokenizer.encode(context + " " + continuation, {});
    double sum = 0.0;
    for (std::size_t at = context.size(); at < tokens.size(); ++at) {
      sum += fixture.after(tokens, at - 1).first[static_cast<std::size_t>(tokens[at])];
    }
    return sum;
  };
  std::mt19937 random(4);
  std::string lines;
  double right = 0.0;
  double right_norm = 0.0;
  for (int question = 0; question < 8; ++question) {
    const auto number_of_question = static_cast<std::uint32_t>(question);
    const std::string context = "q" + random_text(10, 50 + number_of_question) + "x";
    const std::vector<std::string> choices = {"ab", "c" + random_text(7, number_of_question),
                                              "\xC3\xA9\xC3\xA9"};
    std::size_t best = 0;
    std::size_t best_norm = 0;
    const std::vector<double> lengths = {2, 8, 2};  // characters, not bytes
    std::vector<double> sums;
    for (const std::string& choice : choices) sums.push_back(score(context, choice));
    for (std::size_t at = 1; at < 3; ++at) {
      if (sums[at] > sums[best]) best = at;
      if (sums[at] / lengths[at] > sums[best_norm] / lengths[best_norm]) best_norm = at;
    }
    const std::size_t answer = random() % 3;
    right += best == answer ? 1.0 : 0.0;
    right_norm += best_norm == answer ? 1.0 : 0.0;
    lines += "{\"context\": \"" + context + "\", \"choices\": [\"" + choices[0] + "\", \"" +
             choices[1] + "\", \"" + choices[2] + "\"], \"answer\": " + std::to_string(answer) +
             "}\n\n";
  }
  const Row row = choice(fixture.setup, preparer, lines).front();
  EXPECT_EQ(longest_choice(fixture.setup, preparer, lines),
            12 + 9 - 1);  // the last token is never computed
  EXPECT_EQ(number(row, "questions"), 8.0);
  EXPECT_DOUBLE_EQ(number(row, "accuracy"), right / 8.0);
  EXPECT_DOUBLE_EQ(number(row, "accuracy_norm"), right_norm / 8.0);

  // Winogrande's form: the same continuation after different contexts.
  const bool second = score("bbbb", "zz") > score("aaaa", "zz");
  const Row partial = choice(fixture.setup, preparer,
                             R"({"contexts": ["aaaa", "bbbb"], "continuation": "zz", "answer": 1})")
                          .front();
  EXPECT_EQ(number(partial, "accuracy"), second ? 1.0 : 0.0);
}

TEST(Choice, EveryBadLineIsNamed) {
  Fixture fixture;
  const ScorePreparer preparer(fixture.config, &fixture.tokenizer,
                               {.context = 160, .kv_tokens = 160, .decodes = true});
  const std::string good = R"({"context": "a", "choices": ["b", "c"], "answer": 0})";
  for (const std::string& line : std::vector<std::string>{
           "{", "[]", R"({"context": "a", "choices": ["b", "c"]})",
           R"({"context": "a", "choices": ["b", "c"], "answer": 2})",
           R"({"context": "a", "choices": ["b", "c"], "answer": -1})",
           R"({"context": "a", "choices": ["b", "c"], "answer": "0"})",
           R"({"context": "a", "choices": ["b"], "answer": 0})",
           R"({"context": "a", "choices": "bc", "answer": 0})",
           R"({"context": "a", "choices": ["b", 1], "answer": 0})",
           R"({"context": 1, "choices": ["b", "c"], "answer": 0})",
           R"({"choices": ["b", "c"], "answer": 0})", R"({"context": "a", "answer": 0})",
           R"({"contexts": ["a", "b"], "answer": 0})", "\xff",
           R"({"context": ")" + std::string(300, 'x') +
               R"(", "choices": ["b", "c"], "answer": 0})"}) {
    try {
      (void)choice(fixture.setup, preparer, good + "\n\n" + line + "\n" + good);
      ADD_FAILURE() << line;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), "E-IN-EVAL") << line;
      EXPECT_EQ(error.line(), 3U) << line;
    }
  }
  EXPECT_THROW((void)choice(fixture.setup, preparer, "\n \n"), Error);
}

TEST(GenerationTasks, CompareGreedyTextsWithTheAnswers) {
  Fixture fixture;
  TinyModel tiny({});
  const PromptPreparer preparer(fixture.config, &fixture.tokenizer,
                                {.context = 160, .kv_tokens = 160});
  const DeviceOnlyPolicy policy;
  Engine engine({4, 16, 0}, policy, tiny.model(), tiny.kv(), &fixture.tokenizer, tiny.backend(),
                &preparer);
  fixture.setup.engine = &engine;
  // What the model says, first.
  Request request;
  request.text = "hello";
  request.sampling.max_tokens = 6;
  const std::string said = engine.run_all(std::vector{request}).front().text.value();
  const GenerationOptions options{.summarize = false, .max_tokens = 6, .stop = {}};
  const std::string lines = "{\"prompt\": \"hello\", \"answer\": [\"no\", " +
                            json_quote("  " + said + "\n") + "]}\n" +
                            "{\"prompt\": \"hello\", \"answer\": \"something else\"}\n";
  const Row row = generate_and_compare(fixture.setup, options, lines).front();
  EXPECT_EQ(longest_completion(fixture.setup, options, preparer,
                               lines + R"({"prompt": "hello hello", "answer": "a"})"),
            11 + 6 - 1);
  EXPECT_EQ(number(row, "exact_match"), 0.5);
  EXPECT_EQ(number(row, "exact_match_stderr"), 0.5);
  EXPECT_GT(number(row, "kv_bytes_per_token"), 0.0);
  for (const char* bad : {"{", "{\"prompt\": 1, \"answer\": \"a\"}", "{\"prompt\": \"a\"}",
                          "{\"prompt\": \"a\", \"answer\": [1]}", "",
                          "{\"prompt\": \"a\", "
                          "\"answer\": []}"}) {
    EXPECT_THROW((void)generate_and_compare(fixture.setup, options, bad), Error) << bad;
  }
}

}  // namespace
}  // namespace triphase::eval
