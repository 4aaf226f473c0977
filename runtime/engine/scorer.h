#pragma once

// Teacher-forced scoring: log-probabilities of given tokens under the model, batched over sequences
// of any length. The first tokens of a sequence are prefilled in chunks; the rest goes through the
// decode path, one token per step, so that whatever acts in decode (attention methods) shows in the
// score. Equal prefixes are shared through the KV store. Results do not depend on the batch. Not
// thread safe; model, store and pool must outlive it.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "memory/kv/kv_store.h"
#include "models/decoder_model.h"

namespace triphase {

struct ScoreTask {
  std::uint64_t key = 0;            // the caller's, given back with the result
  std::vector<TokenId> tokens;      // at least 2; the last one is scored but never computed
  std::int64_t first_scored = 1;    // tokens from here to the end get a score; at least 1
  std::int64_t prefill_tokens = 0;  // leading tokens computed in chunks; more than there are: all

  // Tokens that go through the model, and the KV the task needs.
  [[nodiscard]] std::int64_t computed_tokens() const {
    return static_cast<std::int64_t>(tokens.size()) - 1;
  }
};

struct TokenScore {
  double logprob = 0.0;  // natural log, over the model's whole vocabulary
  TokenId best = 0;      // likeliest token there; ties to the lower id
};

struct ScoredTask {
  std::uint64_t key = 0;
  std::vector<TokenScore> scores;  // of tokens[first_scored..]
  bool finite = true;              // false: NaN or infinite logits, the scores mean nothing
};

struct ScorerStats {
  double prefill_seconds = 0.0;  // a step's time is split by the share of rows
  double decode_seconds = 0.0;
  std::uint64_t computed_tokens = 0;
  std::uint64_t decoded_tokens = 0;  // of them one per step
  std::uint64_t shared_tokens = 0;   // found in the KV store instead of computed
  std::uint64_t scored_tokens = 0;
  std::uint64_t steps = 0;
  std::int64_t max_batch = 0;
};

// What one token was scored by, for those who need more than its score.
struct ScoredRow {
  std::uint64_t key = 0;          // the task's; under score_all() its place in `tasks`
  std::size_t score = 0;          // index into ScoredTask::scores
  std::span<const float> logits;  // the whole vocabulary
};

class Scorer {
 public:
  struct Options {
    std::int64_t batch_size = 0;     // most sequences running together
    std::int64_t prefill_chunk = 0;  // most prefilled tokens in one step
    // Called for every scored token, from several threads at once.
    std::function<void(const ScoredRow& row)> on_row = {};
  };

  // The model's limits must allow batch_size + prefill_chunk rows, all of them with logits.
  Scorer(const Options& options, DecoderModel& model, KvStore& kv, ThreadPool& pool,
         Stream& stream);
  ~Scorer();
  Scorer(const Scorer&) = delete;
  Scorer& operator=(const Scorer&) = delete;

  // Few enough wait that a file of any length takes no memory.
  [[nodiscard]] bool has_room() const;
  // The task must fit the model's context and the KV store alone.
  void submit(ScoreTask task);
  [[nodiscard]] std::uint64_t in_flight() const { return waiting_.size() + running_.size(); }
  // Computes one batch; returns what finished, in order of admission. Call while in_flight() > 0.
  [[nodiscard]] std::vector<ScoredTask> step();
  // Submits and steps until everything is scored; results in the order of `tasks`.
  // `on_step` gets the number of tasks done after every step.
  [[nodiscard]] std::vector<ScoredTask> score_all(
      std::vector<ScoreTask> tasks, const std::function<void(std::uint64_t done)>& on_step = {});

  [[nodiscard]] const ScorerStats& stats() const { return stats_; }

 private:
  struct Running {
    ScoreTask task;
    SequenceId id;
    std::uint64_t rope_key = 0;
    std::int64_t computed = 0;  // leading tokens whose KV is in the store
    ScoredTask result;

    [[nodiscard]] std::int64_t prefill_left() const;
  };
  struct WantedRow {
    std::size_t owner;    // index into running_
    std::int64_t target;  // the token this row predicts
  };

  void admit_waiting();
  [[nodiscard]] static std::int64_t prefilled_tokens(const ScoreTask& task) {
    return std::min(task.prefill_tokens, task.computed_tokens());
  }
  [[nodiscard]] std::optional<std::int64_t> most_shared_blocks(const ScoreTask& task) const;
  [[nodiscard]] bool should_wait_for_shared_prefix(const ScoreTask& waiting,
                                                   std::uint64_t rope_key) const;
  void build_batch();
  void score_rows(ConstMatrix logits);
  [[nodiscard]] std::vector<ScoredTask> collect_finished();

  Options options_;
  DecoderModel* model_;
  KvStore* kv_;
  ThreadPool* pool_;
  Stream* stream_;
  std::deque<ScoreTask> waiting_;
  std::vector<Running> running_;  // in order of admission

  // The batch of this step; kept to reuse its memory.
  std::vector<TokenId> batch_tokens_;
  std::vector<BatchSegment> batch_segments_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<WantedRow> wanted_;  // per logit row
  std::int64_t batch_prefill_rows_ = 0;
  ScorerStats stats_;
};

// The score of `token` under one row of logits: its log-softmax in float64, and the likeliest
// token. Returns false when a logit is NaN or infinite.
[[nodiscard]] bool score_token(std::span<const float> logits, TokenId token, TokenScore& score);

}  // namespace triphase
