#pragma once

// `triphase score` as the job sees it: requests in, log-likelihoods out. A request is tokenized and
// cut into windows (ScorePreparer), which an Engine scores, and their scores are put together
// again. Not thread safe.

#include <cstdint>
#include <map>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/job/job.h"
#include "runtime/job/score_preparer.h"

namespace triphase {

class ScoreEngine final : public CompletionEngine {
 public:
  // `token_logprobs`: completions name the log-probability of every token, not only the sum.
  ScoreEngine(Engine& engine, const ScorePreparer& preparer, bool token_logprobs)
      : engine_(&engine), preparer_(preparer), token_logprobs_(token_logprobs) {}

  [[nodiscard]] bool has_room() const override { return engine_->has_room(); }
  void submit(Request request) override;
  [[nodiscard]] std::uint64_t in_flight() const override {
    return pending_.size() + finished_.size();
  }
  [[nodiscard]] std::uint64_t running() const override { return engine_->running(); }
  [[nodiscard]] bool scores() const override { return true; }
  [[nodiscard]] std::vector<Completion> step() override;
  // Every computed token is given, none is generated.
  [[nodiscard]] std::uint64_t prompt_tokens() const override {
    return engine_->stats().computed_prompt_tokens;
  }
  [[nodiscard]] std::uint64_t generated_tokens() const override { return 0; }

 private:
  struct Pending {
    Completion completion;
    std::vector<Completion> windows;
    std::size_t left = 0;  // windows not yet scored
  };

  void take(Completion scored);
  void finish(Pending& pending) const;

  Engine* engine_;
  ScorePreparer preparer_;
  bool token_logprobs_;
  std::map<std::uint64_t, Pending> pending_;  // by the engine's index of the first window
  std::uint64_t next_index_ = 0;
  std::vector<Completion> finished_;
};

}  // namespace triphase
