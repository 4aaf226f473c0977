#pragma once

// The requests an Engine holds: waiting, running, and preempted ones. Plain values.

#include <algorithm>
#include <cstdint>
#include <memory>

#include "base/ids.h"
#include "runtime/engine/phase_log.h"
#include "runtime/engine/sequence.h"
#include "scheduler/placement/placement_step.h"

namespace triphase {

struct RunningRequest {
  std::unique_ptr<Sequence> sequence;
  SequenceId id;
  std::uint64_t rope_key = 0;
  std::uint64_t admission = 0;  // how many requests were admitted before it
  std::int64_t computed = 0;    // leading tokens whose KV is in the store
  std::int64_t had = 0;         // the most that it had computed before a drop took its KV
  // Leading tokens computed in chunks before decoding goes on: the prompt, or after a preemption
  // by recomputation everything the request had.
  std::int64_t prefill_tokens = 0;
  RequestPhase phase;
  // While the sequence awaits tokens: the last one's row of the results of the step queued last.
  std::int32_t awaited_row = 0;

  // The request as policies see it.
  [[nodiscard]] PlacedRequest placed() const {
    return {.id = id,
            .admission = admission,
            .prompt_tokens = sequence->prompt_tokens(),
            .prefill_tokens = prefill_tokens,
            .context = computed,
            .max_tokens = sequence->max_kv_tokens(),
            .context_key = rope_key};
  }
  // Of the `count` tokens behind the computed ones: those that were computed before, too.
  [[nodiscard]] std::int64_t again(std::int64_t count) const {
    return std::clamp<std::int64_t>(had - computed, 0, count);
  }
  // And those of the prompt, or given, that are computed for the first time.
  [[nodiscard]] std::int64_t first_of_prompt(std::int64_t count) const {
    const std::int64_t end = std::min(computed + count, sequence->given_tokens());
    return std::max<std::int64_t>(end - std::max(computed, had), 0);
  }
  // Before a preemption takes its KV: what it decoded is prefill when it resumes, and so is the
  // token that it would have decoded now.
  void prefill_what_there_is() {
    if (prefill_left() == 0) prefill_tokens = computed + 1;
  }
  // Nothing is left to compute: it ends with the results of the step under way.
  [[nodiscard]] bool computed_all() const { return computed == sequence->max_kv_tokens(); }
  [[nodiscard]] std::int64_t prefill_left() const {
    return computed < prefill_tokens ? prefill_tokens - computed : 0;
  }
};

struct PreemptedRequest {
  RunningRequest request;  // kDrop: without id
  PreemptMode mode = PreemptMode::kSwap;
};

}  // namespace triphase
