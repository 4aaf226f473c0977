#pragma once

// The tokens of one sequence that a step computes.

#include <cstdint>

#include "base/ids.h"
#include "scheduler/kv/kv_windows.h"

namespace triphase {

// Consecutive new tokens of one sequence. Their blocks exist already (KvBook::append).
struct BatchSegment {
  SequenceId sequence;
  std::int64_t first_row = 0;  // of the step's tokens
  std::int64_t count = 0;
  std::int64_t first_position = 0;  // absolute position of the first one
  std::uint64_t rope_key = 0;       // RopeTable::key_for_prompt
  // A sampled token: attended on the host if its sequence's KV is there (KvShape::host_attention).
  bool decode = false;
  // Its sequence decodes one token in the step after this one, unless the token that this step
  // samples ends it: blocks for that step may be prefetched.
  bool continues = false;

  // The first block that its rows read in a layer with a sliding window; 0 for no window.
  [[nodiscard]] std::int64_t first_block_in_window(std::int64_t window,
                                                   std::int64_t block_tokens) const {
    return window > 0 ? triphase::first_block_in_window(first_position, window, block_tokens) : 0;
  }
};

}  // namespace triphase
