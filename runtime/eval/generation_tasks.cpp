#include "runtime/eval/generation_tasks.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "runtime/engine/nan_logits.h"
#include "runtime/eval/eval_data.h"
#include "runtime/eval/rouge.h"

namespace triphase::eval {
namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\n\r\v\f";
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

Request request_of(const Item& item, const GenerationOptions& options) {
  Request request;
  request.text = item.prompt;
  request.sampling.max_tokens = options.max_tokens;
  request.sampling.stop = options.stop;
  return request;
}

[[noreturn]] void refuse_item(const Setup& setup, const Item& item, const RecordError& error) {
  bad_data(setup.data_path, item.line, error.code, error.message, /*expected=*/"");
}

std::vector<Completion> generate_all(const Setup& setup, const GenerationOptions& options,
                                     const std::vector<Item>& items) {
  std::vector<Request> requests;
  requests.reserve(items.size());
  for (const Item& item : items) requests.push_back(request_of(item, options));
  return setup.engine->run_all(
      std::move(requests), [&](std::span<const Completion> finished, std::uint64_t done) {
        for (const Completion& completion : finished) {
          if (!completion.error) continue;
          if (completion.error->code == "E-NUM-LOGITS") {
            throw nan_logits(setup.data_path, "NaN or infinity").line(items[completion.index].line);
          }
          refuse_item(setup, items[completion.index], *completion.error);
        }
        if (setup.on_progress) setup.on_progress(done, items.size());
      });
}

}  // namespace

std::int64_t longest_completion(const Setup& setup, const GenerationOptions& options,
                                const PromptPreparer& preparer, std::string_view jsonl) {
  std::int64_t longest = 0;
  for (const Item& item : read_items(setup.data_path, jsonl)) {
    Request request = request_of(item, options);
    if (const auto error = preparer.prepare(request)) refuse_item(setup, item, *error);
    const auto prompt = std::ssize(request.tokens);
    longest = std::max(longest, prompt + options.max_tokens - 1);
  }
  return longest;
}

std::vector<Row> generate_and_compare(const Setup& setup, const GenerationOptions& options,
                                      std::string_view jsonl) {
  const std::vector<Item> items = read_items(setup.data_path, jsonl);
  const std::vector<Completion> completions = generate_all(setup, options, items);
  std::vector<double> scores;
  std::vector<ScoreTask> same_steps;  // a completion's decode steps are those of scoring it
  for (std::size_t at = 0; at < items.size(); ++at) {
    const std::int64_t prompt = completions[at].prompt_tokens;
    same_steps.push_back({.tokens = std::vector<TokenId>(static_cast<std::size_t>(prompt) +
                                                         completions[at].tokens.size()),
                          .prefill_tokens = prompt});
    const std::string text = completions[at].text.value_or("");
    double best = 0.0;
    for (const std::string& answer : items[at].answers) {
      const double score = options.summarize                  ? rouge_l(answer, text).f
                           : trimmed(answer) == trimmed(text) ? 1.0
                                                              : 0.0;
      best = std::max(best, score);
    }
    scores.push_back(best);
  }
  setup.keep_samples(scores);
  const Mean mean = mean_of(scores);
  const std::string name = options.summarize ? "rouge_l" : "exact_match";
  return {{{"task", options.summarize ? "summarize" : "exact-match"},
           {"definition", options.summarize
                              ? "ROUGE-L F of greedy completions, best of the answers"
                              : "share of greedy completions equal to an answer, trimmed"},
           {name, mean.mean},
           {name + "_stderr", mean.standard_error},
           {"lines", mean.count},
           {"max_tokens", options.max_tokens},
           {"kv_bytes_per_token", dense_bytes_per_token(setup, same_steps)}}};
}

}  // namespace triphase::eval
