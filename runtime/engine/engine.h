#pragma once

// Continuous batching over one model on one device: requests in, completions out in the order they
// finish. A request's completion is sampled, or given and scored (ScoreTask). Each step() lets the
// placement policy decide who runs and where KV lives, and computes one ragged batch: one token of
// every decoding sequence and chunks of waiting prompts. A finished sequence's place is refilled at
// the next step. Results do not depend on the batch. Not thread safe; the model, store and backend
// must outlive it.
//
// A GPU need not wait for the host between two steps: the next one is queued before the results of
// the one under way are known. It embeds their tokens on the device. A row of a request that turns
// out to have ended is computed in vain.

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "memory/kv/kv_store.h"
#include "models/decoder_model.h"
#include "models/tokenizer/tokenizer.h"
#include "runtime/engine/engine_requests.h"
#include "runtime/engine/loaded_model.h"
#include "runtime/engine/placement_driver.h"
#include "runtime/engine/sampler.h"
#include "runtime/engine/sequence.h"
#include "runtime/job/job.h"
#include "runtime/job/prompt_preparer.h"
#include "scheduler/placement/phase_boundaries.h"

namespace triphase {

struct EngineOptions {
  std::int64_t batch_size = 0;     // most sequences running together
  std::int64_t prefill_chunk = 0;  // most prompt tokens in one step
  std::uint64_t job_seed = 0;
};

// What happened so far; times are split by the share of rows where a step held both kinds.
struct EngineStats {
  double prefill_seconds = 0.0;
  double decode_seconds = 0.0;
  std::uint64_t computed_prompt_tokens = 0;  // for the first time
  std::uint64_t recomputed_tokens = 0;       // once more, since a preemption dropped them
  std::uint64_t decoded_tokens = 0;          // computed one per step, once more too
  std::uint64_t generated_tokens = 0;
  std::uint64_t results_of_decoding = 0;  // tokens that decoded rows drew or scored
  std::uint64_t steps = 0;
  std::int64_t max_batch = 0;
  // Steps, and their time, by the latest phase that any request was in.
  std::array<PhaseUse, 3> phases{};
};

// What one given token was scored by, for those who need more than its score.
struct ScoredRow {
  std::uint64_t index = 0;        // ScoreTask::index
  std::size_t score = 0;          // index into Completion::scores
  std::span<const float> logits;  // the whole vocabulary
};

class Engine final : public CompletionEngine {
 public:
  // `policy` and `preparer` must outlive the engine. `preparer` null: requests come with the tokens
  // that it would make of them.
  Engine(const EngineOptions& options, const PlacementPolicy& policy, DecoderModel& model,
         KvStore& kv, const Tokenizer* tokenizer, Backend& backend,
         const PromptPreparer* preparer = nullptr);
  // Of a plan, over the model that was loaded for it.
  Engine(const RunPlan& plan, LoadedModel& loaded, const Workplace& place,
         const PromptPreparer* preparer = nullptr, std::uint64_t job_seed = 0);
  ~Engine() override;

  [[nodiscard]] bool has_room() const override;
  void submit(Request request) override;
  // The task must fit the model's context and the KV store alone. Where tokens of prompts are
  // scored, the model's limits must allow logits of every row.
  void submit(ScoreTask task);
  [[nodiscard]] std::uint64_t in_flight() const override;
  [[nodiscard]] std::uint64_t running() const override { return running_.size(); }
  // Waits for the step that the call before queued on a GPU, and queues the next one, before it
  // waits where it can. Whatever the caller does between the calls, the GPU computes meanwhile.
  // What a step finished comes with the next call, on the CPU with its own.
  [[nodiscard]] std::vector<Completion> step() override;
  // Called after every step: what it finished, and how many are done by then.
  using OnStep = std::function<void(std::span<const Completion> finished, std::uint64_t done)>;
  // Submits all of `work` as there is room, and steps until everything is done. Results are in the
  // order of `work`, and so are their indices.
  template <class Work>  // Request or ScoreTask
  [[nodiscard]] std::vector<Completion> run_all(std::vector<Work> work, const OnStep& on_step = {});
  [[nodiscard]] std::uint64_t prompt_tokens() const override {
    return stats_.computed_prompt_tokens;
  }
  [[nodiscard]] std::uint64_t generated_tokens() const override { return stats_.generated_tokens; }

  // Gets every scored row from now on, from several threads at once. A request that was preempted
  // and is computed again may give a row twice.
  void set_row_observer(std::function<void(const ScoredRow& row)> observer) {
    on_row_ = std::move(observer);
  }
  // Records steps, placement and phases from now on; null: off. The trace is flushed between steps.
  void set_trace(Trace* trace);
  // Ends the spans that are open, those of unfinished requests too; no step() may follow.
  void finish_trace();

  [[nodiscard]] const EngineStats& stats() const { return stats_; }
  [[nodiscard]] PlacementDriver& placement() { return placement_; }
  [[nodiscard]] const PlacementDriver& placement() const { return placement_; }

 private:
  // A row of the batch whose logits are wanted.
  struct LogitRow {
    Sequence* sequence = nullptr;  // null: it ended meanwhile
    std::int64_t position = 0;
    bool decoded = false;  // the prompt was computed before
  };
  using Clock = std::chrono::steady_clock;

  // A step that was queued.
  struct Queued {
    // Steps that overlap are no ranges of a profiler, which nest.
    explicit Queued(Trace* trace) : span(trace, TraceLane::kSteps, "step", trace != nullptr) {}
    Clock::time_point start = Clock::now();
    TraceSpan span;
    std::vector<LogitRow> rows;  // one a logit row
    ConstMatrix logits;
    Sampler::Drawn drawn;
    std::int64_t prefill_rows = 0;
    std::int64_t decode_rows = 0;
    Phase phase = Phase::kOne;
  };

  [[nodiscard]] bool has_work() const {
    return !waiting_.empty() || !running_.empty() || !preempted_.empty();
  }
  // Whether the next step can be queued before the one under way is finished.
  [[nodiscard]] bool can_run_ahead() const;
  // Gives up the KV of requests that the step under way ends, whatever it draws.
  void set_ending_aside();
  // A failure is kept for the caller, who gets first what steps before it finished.
  void queue_step_or_fail(std::unique_ptr<Queued>& step);
  [[nodiscard]] std::unique_ptr<Queued> queue_step();
  void finish_step();
  void admit_and_place();
  void build_batch(Queued& step);
  void add_tokens(const RunningRequest& running, std::int64_t count);
  [[nodiscard]] ConstMatrix forward();
  void count_computed();
  void want_logits(RunningRequest& request, std::int64_t count, bool decoded, Queued& step);
  void use_results(const Queued& step);
  void show_scored_rows(const Queued& step);
  void collect_finished();
  // Its KV, and what the attention method knows of it.
  void give_up_kv(RunningRequest& request);
  void take_completion(RunningRequest& request);
  void count_step(const Queued& step);
  void trace_memory() const;

  EngineOptions options_;
  DecoderModel* model_;
  KvStore* kv_;
  const PromptPreparer* preparer_;
  const Tokenizer* tokenizer_;
  Backend* backend_;

  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<RunningRequest> running_;  // in order of admission
  std::vector<PreemptedRequest> preempted_;
  std::vector<RunningRequest> ending_;  // without KV, until the step under way is finished
  std::vector<Completion> finished_;

  std::vector<std::int64_t> step_tokens_;  // of each running request
  // The batch of this step; kept to reuse its memory.
  std::vector<TokenId> batch_tokens_;
  std::vector<BatchSegment> batch_segments_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<SampleRow> sample_rows_;  // per logit row
  Sampler sampler_;
  std::unique_ptr<Queued> queued_;   // the step under way
  std::unique_ptr<Queued> ahead_;    // the one after it, while this one is finished
  Clock::time_point last_finish_{};  // of a step
  std::exception_ptr failure_;       // of queueing a step
  std::int64_t sampled_vocab_ = 0;   // rows of the head beyond the tokenizer's ids are never drawn
  std::function<void(const ScoredRow& row)> on_row_;
  PlacementDriver placement_;
  EngineStats stats_;
  Trace* trace_ = nullptr;
};

template <class Work>
std::vector<Completion> Engine::run_all(std::vector<Work> work, const OnStep& on_step) {
  std::vector<Completion> results(work.size());
  std::size_t next = 0;
  std::uint64_t done = 0;
  while (done < work.size()) {
    for (; next < work.size() && has_room(); ++next) {
      work[next].index = next;
      submit(std::move(work[next]));
    }
    std::vector<Completion> finished = step();
    done += finished.size();
    if (on_step) on_step(finished, done);
    for (Completion& completion : finished) results[completion.index] = std::move(completion);
  }
  return results;
}

}  // namespace triphase
