#pragma once

// The lines an Engine holds: waiting, running, and suspended ones. Plain values.

#include <cstdint>
#include <memory>

#include "base/ids.h"
#include "runtime/engine/phase_log.h"
#include "runtime/engine/sequence.h"
#include "scheduler/batch_planner.h"
#include "scheduler/placement/placement_view.h"

namespace triphase {

struct RunningLine {
  std::unique_ptr<Sequence> sequence;
  SequenceId id;
  std::uint64_t rope_key = 0;
  std::uint64_t admission = 0;  // how many lines were admitted before it
  std::int64_t computed = 0;    // leading tokens whose KV is in the store
  // Leading tokens computed in chunks before decoding goes on: the prompt, or after a preemption
  // by recomputation everything the line had.
  std::int64_t prefill_tokens = 0;
  LinePhase phase;

  // What a step may compute of it.
  [[nodiscard]] SequenceProgress progress() const { return {prefill_left(), computed}; }
  // Before a preemption takes its KV: what it decoded is prefill when it resumes, and so is the
  // token that it would have decoded now.
  void prefill_what_there_is() {
    if (prefill_left() == 0) prefill_tokens = computed + 1;
  }
  [[nodiscard]] std::int64_t prefill_left() const {
    return computed < prefill_tokens ? prefill_tokens - computed : 0;
  }
};

struct SuspendedLine {
  RunningLine line;  // kDrop: its id names nothing in the store any more
  SuspendMode mode = SuspendMode::kSwap;
};

}  // namespace triphase
