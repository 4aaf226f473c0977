#pragma once

// Continuous batching over one model on one device: requests in, completions out in the order they
// finish. Each step() lets the placement policy decide who runs and where KV lives, and computes
// one ragged batch: one token of every decoding sequence and chunks of waiting prompts. A finished
// sequence's place is refilled at the next step. Not thread safe; the
// model, store and pool must outlive it.

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "memory/kv/kv_store.h"
#include "models/decoder_model.h"
#include "models/tokenizer/tokenizer.h"
#include "runtime/engine/engine_lines.h"
#include "runtime/engine/placement_driver.h"
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
  std::uint64_t prompt_tokens = 0;  // of all admitted prompts
  std::uint64_t computed_prompt_tokens = 0;
  std::uint64_t shared_prompt_tokens = 0;  // found in the KV store instead of computed
  std::uint64_t generated_tokens = 0;
  std::uint64_t steps = 0;
  std::int64_t max_batch = 0;
  // Steps, and their time, by the latest phase that any line was in.
  std::array<PhaseUse, 3> phases{};
};

class Engine final : public CompletionEngine {
 public:
  // `policy` must outlive the engine.
  Engine(const EngineOptions& options, const PlacementPolicy& policy, DecoderModel& model,
         KvStore& kv, const PromptPreparer& preparer, const Tokenizer* tokenizer, ThreadPool& pool,
         Stream& stream);
  ~Engine() override;

  [[nodiscard]] bool has_room() const override;
  void submit(Request request) override;
  [[nodiscard]] std::uint64_t in_flight() const override;
  [[nodiscard]] std::vector<Completion> step() override;
  [[nodiscard]] std::uint64_t prompt_tokens() const override { return stats_.prompt_tokens; }
  [[nodiscard]] std::uint64_t generated_tokens() const override { return stats_.generated_tokens; }

  // Records steps, placement and phases from now on; null: off. The trace is flushed between steps.
  void set_trace(Trace* trace);
  // Ends the spans that are open, those of unfinished lines too; no step() may follow.
  void finish_trace();

  [[nodiscard]] const EngineStats& stats() const { return stats_; }
  [[nodiscard]] PlacementDriver& placement() { return placement_; }
  [[nodiscard]] const PlacementDriver& placement() const { return placement_; }

 private:
  void admit_and_place();
  void build_batch();
  [[nodiscard]] ConstMatrix forward();
  void sample_rows(ConstMatrix logits);
  void collect_finished();
  void count_step(double seconds);
  void trace_memory() const;

  EngineOptions options_;
  DecoderModel* model_;
  KvStore* kv_;
  const PromptPreparer* preparer_;
  const Tokenizer* tokenizer_;
  ThreadPool* pool_;
  Stream* stream_;

  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<RunningLine> running_;  // in order of admission
  std::vector<SuspendedLine> suspended_;
  std::vector<Completion> finished_;

  // The batch of this step; kept to reuse its memory.
  std::vector<TokenId> batch_tokens_;
  std::vector<BatchSegment> batch_segments_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<std::size_t> logit_owners_;  // index into running_ per logit row
  std::int64_t batch_prefill_rows_ = 0;
  std::vector<SamplerScratch> sampler_scratch_;  // per worker
  std::int64_t sampled_vocab_ = 0;  // rows of the head beyond the tokenizer's ids are never drawn
  PlacementDriver placement_;
  EngineStats stats_;
  Trace* trace_ = nullptr;
};

}  // namespace triphase
