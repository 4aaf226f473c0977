#pragma once

// Which tokens a step computes. PURE: values in, values out. Continuous batching: every decoding
// sequence advances by one token in every step, and prompts fill the rest of the step in chunks,
// oldest first, so that a long prompt never stops the others and a finished sequence's place is
// taken at once.

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "scheduler/attention/prompt_units.h"

namespace triphase {

// Prompt tokens of a step where nobody chooses. A GPU's products are divided into tiles of rows,
// too few of which leave most of it idle.
inline constexpr std::int64_t kCpuPrefillChunk = 256;
inline constexpr std::int64_t kGpuPrefillChunk = 1024;

// A running sequence as the planner sees it, in order of admission.
struct SequenceProgress {
  std::int64_t prompt_left = 0;  // prompt tokens not yet computed; 0: decoding
  std::int64_t computed = 0;     // tokens computed so far
};

struct StepLimits {
  std::int64_t rows = 0;           // tokens of one step, all sequences together
  std::int64_t prefill_chunk = 0;  // most tokens of one step that are from prompts
  PromptUnits units;  // of prompts; no longer than prefill_chunk, or the prompts are not
};

// Tokens to compute per running sequence (same order; 0 = not in this step). The sum is at most
// limits.rows; it is positive when any sequence is running and limits.rows > 0, and all of
// prefill_chunk fits beside the decoding ones where there are units.
[[nodiscard]] std::vector<std::int64_t> plan_step(std::span<const SequenceProgress> running,
                                                  const StepLimits& limits);

}  // namespace triphase
