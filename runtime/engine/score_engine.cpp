#include "runtime/engine/score_engine.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"

namespace triphase {

void ScoreEngine::submit(Request request) {
  Pending pending;
  pending.completion.index = request.index;
  PreparedScore prepared;
  if (auto error = preparer_->prepare(request, prepared)) {
    pending.completion.error = std::move(error);
    finished_.push_back(std::move(pending.completion));
    return;
  }
  pending.completion.tokens = std::move(prepared.scored);
  pending.completion.prompt_tokens = prepared.context_tokens;
  pending.left = prepared.tasks.size();
  pending.windows.resize(pending.left);
  for (std::size_t window = 0; window < prepared.tasks.size(); ++window) {
    ScoreTask& task = prepared.tasks[window];
    task.key = next_key_++;
    windows_.emplace(task.key, std::pair(request.index, window));
    scorer_.submit(std::move(task));
  }
  pending_.emplace(request.index, std::move(pending));
}

std::vector<Completion> ScoreEngine::step() {
  if (scorer_.in_flight() > 0) {
    for (ScoredTask& scored : scorer_.step()) take(std::move(scored));
  }
  return std::exchange(finished_, {});
}

void ScoreEngine::take(ScoredTask scored) {
  const auto place = windows_.find(scored.key);
  TRIPHASE_CHECK(place != windows_.end(), "a window of a line");
  const auto [index, window] = place->second;
  windows_.erase(place);
  Pending& pending = pending_.at(index);
  pending.windows[window] = std::move(scored);
  if (--pending.left > 0) return;
  finish(pending);
  finished_.push_back(std::move(pending.completion));
  pending_.erase(index);
}

// Sums in the order of the text, so that the record does not depend on which window came first.
void ScoreEngine::finish(Pending& pending) const {
  Completion& completion = pending.completion;
  LineScore score;
  std::size_t position = 0;
  for (const ScoredTask& window : pending.windows) {
    if (!window.finite) {
      completion.error = RecordError{
          "E-NUM-LOGITS", "logits: NaN or infinity among the scored positions, expected numbers"};
      completion.tokens.clear();
      return;
    }
    for (const TokenScore& token : window.scores) {
      score.logprob += token.logprob;
      score.greedy = score.greedy && token.best == completion.tokens[position++];
      if (token_logprobs_) score.token_logprobs.push_back(token.logprob);
    }
  }
  completion.score = std::move(score);
}

EngineStats ScoreEngine::stats() const {
  const ScorerStats& scored = scorer_.stats();
  EngineStats stats;
  stats.prefill_seconds = scored.prefill_seconds;
  stats.decode_seconds = scored.decode_seconds;
  stats.prompt_tokens = scored.computed_tokens + scored.shared_tokens;
  stats.computed_prompt_tokens = scored.computed_tokens;
  stats.shared_prompt_tokens = scored.shared_tokens;
  stats.steps = scored.steps;
  stats.max_batch = scored.max_batch;
  return stats;
}

}  // namespace triphase
