#include "runtime/eval/eval.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "runtime/engine/nan_logits.h"
#include "runtime/eval/eval_data.h"

namespace triphase::eval {

std::vector<Completion> score_tasks(const Setup& setup, std::vector<ScoreTask> tasks) {
  const auto total = static_cast<std::uint64_t>(tasks.size());
  return setup.engine->run_all(
      std::move(tasks), [&](std::span<const Completion> finished, std::uint64_t done) {
        for (const Completion& scored : finished) {
          if (!scored.error) continue;
          throw nan_logits(setup.data_path, "NaN or infinity at a scored token");
        }
        if (setup.on_progress) setup.on_progress(done, total);
      });
}

double dense_bytes_per_token(const Setup& setup, const std::vector<ScoreTask>& tasks) {
  double tokens = 0.0;
  double steps = 0.0;
  for (const ScoreTask& task : tasks) {
    const auto first = static_cast<double>(std::min(task.prefill_tokens, task.computed_tokens()));
    const auto end = static_cast<double>(task.computed_tokens());
    // The step at position p reads p + 1 tokens.
    tokens += (end * (end + 1.0) - first * (first + 1.0)) / 2.0;
    steps += end - first;
  }
  return steps == 0.0 ? 0.0 : tokens / steps * static_cast<double>(setup.kv_token_bytes);
}

std::vector<TokenId> text_tokens(const Setup& setup, std::string_view text) {
  const std::size_t invalid = first_invalid_utf8(text);
  if (invalid != std::string_view::npos) {
    throw Error(ErrorRole::kInput, "E-IN-UTF8", "text")
        .file(setup.data_path)
        .byte(invalid + 1)
        .found("bytes that are not UTF-8")
        .expected("UTF-8 text");
  }
  return setup.tokenizer->encode(text, {.add_special = false, .parse_special = false});
}

std::vector<ScoreTask> text_windows(const Setup& setup, std::string_view text) {
  const std::vector<TokenId> tokens = text_tokens(setup, text);
  const std::vector<TokenId> prefix = leading_specials(*setup.tokenizer);
  const auto step = static_cast<std::size_t>(setup.window) - prefix.size();
  std::vector<ScoreTask> tasks;
  for (std::size_t begin = 0; begin < tokens.size(); begin += step) {
    ScoreTask task;
    task.tokens = prefix;
    const std::size_t end = std::min(begin + step, tokens.size());
    task.tokens.insert(task.tokens.end(), tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                       tokens.begin() + static_cast<std::ptrdiff_t>(end));
    // Token prefill_len is predicted by the last dense row, so scores begin after it.
    task.prefill_tokens = setup.prefill_len;
    task.first_scored = setup.prefill_len + 1;
    if (std::ssize(task.tokens) <= task.first_scored) break;
    tasks.push_back(std::move(task));
  }
  if (tasks.empty()) {
    bad_data(setup.data_path, 0, "text", fmt::format("{} tokens", tokens.size()),
             fmt::format("more than {} with --prefill-len {}",
                         setup.prefill_len + 1 - std::ssize(prefix), setup.prefill_len));
  }
  return tasks;
}

}  // namespace triphase::eval
