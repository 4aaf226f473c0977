#include <fmt/format.h>

#include <random>

#include "base/utf8.h"
#include "runtime/eval/eval.h"
#include "runtime/eval/eval_data.h"

namespace triphase::eval {
namespace {

// Below `bound`, equal on every platform.
std::size_t draw(std::mt19937_64& random, std::size_t bound) {
  return bound == 0 ? 0 : static_cast<std::size_t>(random() % bound);
}

// Leading scored tokens that greedy decoding would have chosen: exactly what it generates before it
// first differs.
std::size_t greedy_tokens(const ScoreTask& task, const Completion& scored) {
  std::size_t count = 0;
  while (count < scored.scores.size() &&
         scored.scores[count].best ==
             task.tokens[static_cast<std::size_t>(task.first_scored) + count]) {
    ++count;
  }
  return count;
}

std::string filled(std::string text, std::string_view field, const std::string& value) {
  for (std::size_t at = text.find(field); at != std::string::npos;
       at = text.find(field, at + value.size())) {
    text.replace(at, field.size(), value);
  }
  return text;
}

// Invented names, so that nothing is known about them.
std::string invented_name(std::mt19937_64& random) {
  constexpr std::string_view kOnsets = "bdfglmnprstvz";
  constexpr std::string_view kVowels = "aeiou";
  std::string name;
  for (int syllable = 0; syllable < 2; ++syllable) {
    name += kOnsets[draw(random, kOnsets.size())];
    name += kVowels[draw(random, kVowels.size())];
  }
  name += kOnsets[draw(random, kOnsets.size())];
  name.front() = static_cast<char>(name.front() - 'a' + 'A');
  return name;
}

// The prompt is dense but for its last token, so that every scored token comes from decode.
void finish_task(ScoreTask& task, std::size_t prompt_tokens) {
  task.first_scored = static_cast<std::int64_t>(prompt_tokens);
  task.prefill_tokens = task.first_scored - 1;
}

void append(std::vector<TokenId>& tokens, std::span<const TokenId> more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
}

Row needle_row(const Setup& setup, const TableValue& length, const TableValue& depth,
               const std::vector<double>& found, double bytes_per_token) {
  setup.keep_samples(found);
  const Mean mean = mean_of(found);
  return {{"task", "needle"},
          {"length", length},
          {"depth", depth},
          {"needle", mean.mean},
          {"needle_stderr", mean.standard_error},
          {"samples", mean.count},
          {"seed", static_cast<std::int64_t>(setup.seed)},
          {"kv_bytes_per_token", bytes_per_token}};
}

}  // namespace

std::vector<Row> repetition(const Setup& setup, const RepetitionOptions& options,
                            std::string_view text) {
  const std::vector<TokenId> tokens = text_tokens(setup, text);
  const std::vector<TokenId> prefix = leading_specials(*setup.tokenizer);
  const std::vector<TokenId> line_end = text_tokens(setup, "\n");
  const auto passage = static_cast<std::size_t>(options.cue_len + options.answer_len);
  const std::size_t around = prefix.size() + line_end.size() + passage;
  const auto window = static_cast<std::size_t>(setup.window);
  if (window < around + passage) {
    bad_data(setup.data_path, 0, "--window", fmt::format("{} tokens", window),
             fmt::format("at least {} for a chunk and its repetition", around + passage));
  }
  const std::size_t chunk = window - around;
  if (tokens.size() < chunk) {
    bad_data(setup.data_path, 0, "text", fmt::format("{} tokens", tokens.size()),
             fmt::format("at least {}, one chunk", chunk));
  }
  std::mt19937_64 random(setup.seed);
  std::vector<ScoreTask> tasks;
  for (std::int64_t sample = 0; sample < setup.samples; ++sample) {
    const std::size_t begin = draw(random, tokens.size() - chunk + 1);
    const std::size_t again = begin + draw(random, chunk - passage + 1);
    ScoreTask task;
    task.tokens = prefix;
    append(task.tokens, std::span(tokens).subspan(begin, chunk));
    append(task.tokens, line_end);
    append(task.tokens, std::span(tokens).subspan(again, passage));
    finish_task(task, task.tokens.size() - static_cast<std::size_t>(options.answer_len));
    tasks.push_back(std::move(task));
  }
  const double bytes_per_token = dense_bytes_per_token(setup, tasks);
  const std::vector<Completion> scored = score_tasks(setup, tasks);
  std::vector<double> lengths;
  std::vector<double> shares;
  for (std::size_t at = 0; at < tasks.size(); ++at) {
    const std::size_t kept = greedy_tokens(tasks[at], scored[at]);
    std::string all;
    std::string matched;
    for (std::size_t i = 0; i < scored[at].scores.size(); ++i) {
      all += setup.tokenizer->token_bytes(
          tasks[at].tokens[static_cast<std::size_t>(tasks[at].first_scored) + i]);
      if (i + 1 == kept) matched = all;
    }
    lengths.push_back(static_cast<double>(count_characters(matched)));
    shares.push_back(static_cast<double>(kept) / static_cast<double>(options.answer_len));
  }
  setup.keep_samples(lengths);
  const Mean length = mean_of(lengths);
  const Mean share = mean_of(shares);
  return {{{"task", "repetition"},
           {"definition", "characters continued verbatim before greedy decoding first differs"},
           {"repetition", length.mean},
           {"repetition_stderr", length.standard_error},
           {"token_share", share.mean},
           {"token_share_stderr", share.standard_error},
           {"samples", length.count},
           {"window", setup.window},
           {"cue_len", options.cue_len},
           {"answer_len", options.answer_len},
           {"seed", static_cast<std::int64_t>(setup.seed)},
           {"kv_bytes_per_token", bytes_per_token}}};
}

std::vector<Row> needle(const Setup& setup, const NeedleOptions& options, std::string_view text) {
  const std::vector<TokenId> haystack = text_tokens(setup, text);
  const std::vector<TokenId> prefix = leading_specials(*setup.tokenizer);
  std::vector<ScoreTask> tasks;
  for (const std::int64_t length : options.lengths) {
    for (const double depth : options.depths) {
      // The same needles and the same text at every depth and length: cells differ in place alone.
      std::mt19937_64 random(setup.seed);
      for (std::int64_t sample = 0; sample < setup.samples; ++sample) {
        const std::string name = invented_name(random);
        const std::string value = fmt::format("{}", 1000 + draw(random, 9000));
        const auto fill = [&](const std::string& one) {
          return filled(filled(one, "{name}", name), "{value}", value);
        };
        const std::vector<TokenId> fact = text_tokens(setup, fill(options.needle));
        const std::string asked = fill(options.question);
        const std::vector<TokenId> question = text_tokens(setup, asked);
        const std::vector<TokenId> answered = text_tokens(setup, asked + " " + value);
        const std::size_t start = random() % (haystack.size() + 1);
        const std::size_t around = prefix.size() + fact.size() + answered.size();
        if (static_cast<std::size_t>(length) <= around || answered.size() <= question.size() ||
            haystack.size() < static_cast<std::size_t>(length)) {
          bad_data(
              setup.data_path, 0, "text",
              fmt::format("{} tokens of text, {} of needle and question", haystack.size(), around),
              fmt::format("enough text for, and room in, a prompt of {} tokens", length));
        }
        const std::size_t straw = static_cast<std::size_t>(length) - around;
        const std::size_t begin = start % (haystack.size() - straw + 1);
        const auto before = static_cast<std::size_t>(depth * static_cast<double>(straw));
        ScoreTask task;
        task.tokens = prefix;
        append(task.tokens, std::span(haystack).subspan(begin, before));
        append(task.tokens, fact);
        append(task.tokens, std::span(haystack).subspan(begin + before, straw - before));
        append(task.tokens, answered);
        finish_task(task, task.tokens.size() - (answered.size() - question.size()));
        tasks.push_back(std::move(task));
      }
    }
  }
  const std::vector<Completion> scored = score_tasks(setup, tasks);
  std::vector<Row> rows;
  std::vector<double> all;
  auto at = tasks.begin();
  auto result = scored.begin();
  for (const std::int64_t length : options.lengths) {
    for (const double depth : options.depths) {
      std::vector<double> found;
      const std::vector<ScoreTask> cell(at, at + setup.samples);
      for (std::int64_t sample = 0; sample < setup.samples; ++sample, ++at, ++result) {
        found.push_back(greedy_tokens(*at, *result) == result->scores.size() ? 1.0 : 0.0);
      }
      all.insert(all.end(), found.begin(), found.end());
      rows.push_back(needle_row(setup, length, depth, found, dense_bytes_per_token(setup, cell)));
    }
  }
  rows.push_back(needle_row(setup, "all", "all", all, dense_bytes_per_token(setup, tasks)));
  return rows;
}

}  // namespace triphase::eval
