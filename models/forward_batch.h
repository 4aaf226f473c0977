#pragma once

// What one forward call computes: a ragged batch of any mix of prefill chunks and single decode
// tokens, laid end to end without padding.

#include <cstdint>
#include <span>

#include "base/ids.h"
#include "kernels/sampling.h"
#include "memory/kv/batch_segment.h"

namespace triphase {

struct ForwardBatch {
  std::span<const TokenId> tokens;           // [T]
  std::span<const BatchSegment> segments;    // cover the T rows in order
  std::span<const std::int32_t> logit_rows;  // rows of the batch whose next-token logits are wanted
  // Empty, or the arguments of the Ops::sample() that will follow, so that they can be sent ahead.
  std::span<const SampleRow> sampled = {};
};

}  // namespace triphase
