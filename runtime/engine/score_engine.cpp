#include "runtime/engine/score_engine.h"

#include <iterator>

namespace triphase {

void ScoreEngine::submit(Request request) {
  Pending pending;
  pending.completion.index = request.index;
  PreparedScore prepared;
  if (auto error = preparer_.prepare(request, prepared)) {
    pending.completion.error = std::move(error);
    finished_.push_back(std::move(pending.completion));
    return;
  }
  pending.completion.tokens = std::move(prepared.scored);
  pending.completion.prompt_tokens = prepared.context_tokens;
  pending.left = prepared.tasks.size();
  pending.windows.resize(pending.left);
  pending_.emplace(next_index_, std::move(pending));
  for (ScoreTask& task : prepared.tasks) {
    task.index = next_index_++;
    engine_->submit(std::move(task));
  }
}

std::vector<Completion> ScoreEngine::step() {
  if (engine_->in_flight() > 0) {
    for (Completion& scored : engine_->step()) take(std::move(scored));
  }
  return std::exchange(finished_, {});
}

void ScoreEngine::take(Completion scored) {
  const auto entry = std::prev(pending_.upper_bound(scored.index));
  Pending& pending = entry->second;
  pending.windows[scored.index - entry->first] = std::move(scored);
  if (--pending.left > 0) return;
  finish(pending);
  finished_.push_back(std::move(pending.completion));
  pending_.erase(entry);
}

// Sums in the order of the text, so that the record does not depend on which window came first.
void ScoreEngine::finish(Pending& pending) const {
  Completion& completion = pending.completion;
  RequestScore score;
  std::size_t position = 0;
  for (Completion& window : pending.windows) {
    if (window.error) {
      completion.error = std::move(window.error);
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

}  // namespace triphase
