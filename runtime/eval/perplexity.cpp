#include <fmt/format.h>

#include <cmath>

#include "runtime/eval/eval.h"

namespace triphase::eval {
namespace {

// Words of a window's scored text: runs of bytes between white space.
std::int64_t count_words(std::string_view text) {
  std::int64_t words = 0;
  bool inside = false;
  for (const char c : text) {
    const bool blank = c == ' ' || (c >= '\t' && c <= '\r');
    if (!blank && !inside) ++words;
    inside = !blank;
  }
  return words;
}

}  // namespace

std::vector<Row> perplexity(const Setup& setup, std::string_view text) {
  const std::vector<ScoreTask> tasks = text_windows(setup, text);
  const bool begins = !leading_specials(*setup.tokenizer).empty();
  const double bytes_per_token = dense_bytes_per_token(setup, tasks);
  const std::vector<Completion> scored = score_tasks(setup, tasks);

  double nats = 0.0;
  double count = 0.0;
  double words = 0.0;
  double bytes = 0.0;
  std::vector<double> of_window;  // nats per token
  for (std::size_t window = 0; window < tasks.size(); ++window) {
    double sum = 0.0;
    std::string read;
    for (const TokenScore& score : scored[window].scores) sum -= score.logprob;
    for (auto at = static_cast<std::size_t>(tasks[window].first_scored);
         at < tasks[window].tokens.size(); ++at) {
      read += setup.tokenizer->token_bytes(tasks[window].tokens[at]);
    }
    const auto size = static_cast<double>(scored[window].scores.size());
    of_window.push_back(sum / size);
    nats += sum;
    count += size;
    words += static_cast<double>(count_words(read));
    bytes += static_cast<double>(read.size());
  }
  const double per_token = std::exp(nats / count);
  std::vector<double> scaled;
  for (const double window : of_window) scaled.push_back(per_token * window);
  setup.keep_samples(scaled);
  return {{{"task", "perplexity"},
           {"definition",
            fmt::format("per token: exp(mean nats); disjoint windows of {} tokens{}, {} dense, the "
                        "rest scored one step each",
                        setup.window, begins ? " (first BOS)" : "", setup.prefill_len)},
           {"perplexity", per_token},
           {"perplexity_stderr", per_token * mean_of(of_window).standard_error},
           {"word_perplexity", words == 0.0 ? NAN : std::exp(nats / words)},
           {"byte_perplexity", bytes == 0.0 ? NAN : std::exp(nats / bytes)},
           {"bits_per_byte", bytes == 0.0 ? NAN : nats / bytes / std::log(2.0)},
           {"nats_per_token", nats / count},
           {"tokens", static_cast<std::int64_t>(count)},
           {"words", static_cast<std::int64_t>(words)},
           {"bytes", static_cast<std::int64_t>(bytes)},
           {"windows", std::ssize(tasks)},
           {"window", setup.window},
           {"prefill_len", setup.prefill_len},
           {"kv_bytes_per_token", bytes_per_token}}};
}

}  // namespace triphase::eval
