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

// What calls may ask for: buffers are made for it.
struct BatchLimits {
  std::int64_t rows = 0;  // T of one call
  std::int64_t segments = 0;
  std::int64_t logit_rows = 0;
  std::int64_t context = 0;  // longest context of a sequence
  bool sparse = false;       // a sparse attention method may be used
  // Tokens of a KV block where cached hidden states may be used (set_hidden_states); 0: they are
  // not.
  std::int64_t input_block_tokens = 0;
  // Leading tokens of which the device itself may find that they must be recomputed.
  std::int64_t listed_input_tokens = 0;
};

}  // namespace triphase
