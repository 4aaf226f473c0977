#pragma once

// `triphase score` as the job sees it: lines in, log-likelihoods out. A line is tokenized and cut
// into windows (ScorePreparer), its windows are scored (Scorer) and put together again. Not thread
// safe.

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/engine/scorer.h"
#include "runtime/job/job.h"
#include "runtime/job/score_preparer.h"

namespace triphase {

class ScoreEngine final : public CompletionEngine {
 public:
  // `token_logprobs`: completions name the log-probability of every token, not only the sum.
  ScoreEngine(const Scorer::Options& options, bool token_logprobs, DecoderModel& model, KvStore& kv,
              const ScorePreparer& preparer, ThreadPool& pool, Stream& stream)
      : preparer_(&preparer),
        token_logprobs_(token_logprobs),
        scorer_(options, model, kv, pool, stream) {}

  [[nodiscard]] bool has_room() const override { return scorer_.has_room(); }
  void submit(Request request) override;
  [[nodiscard]] std::uint64_t in_flight() const override {
    return pending_.size() + finished_.size();
  }
  [[nodiscard]] std::vector<Completion> step() override;
  [[nodiscard]] std::uint64_t prompt_tokens() const override {
    return scorer_.stats().computed_tokens;
  }
  [[nodiscard]] std::uint64_t generated_tokens() const override { return 0; }

  // In the terms of a generating run: everything computed is prompt.
  [[nodiscard]] EngineStats stats() const;

 private:
  struct Pending {
    Completion completion;
    std::vector<ScoredTask> windows;
    std::size_t left = 0;  // windows not yet scored
  };

  void take(ScoredTask scored);
  void finish(Pending& pending) const;

  const ScorePreparer* preparer_;
  bool token_logprobs_;
  Scorer scorer_;
  std::unordered_map<std::uint64_t, Pending> pending_;  // by line index
  std::unordered_map<std::uint64_t, std::pair<std::uint64_t, std::size_t>> windows_;  // by task key
  std::uint64_t next_key_ = 0;
  std::vector<Completion> finished_;
};

}  // namespace triphase
