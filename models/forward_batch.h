#pragma once

// What one forward call computes: a ragged batch of any mix of prefill chunks and single decode
// tokens, laid end to end without padding.

#include <cstdint>
#include <span>

#include "runtime/base/ids.h"

namespace triphase {

// Consecutive new tokens of one sequence. Their places in the KV store exist already (append).
struct BatchSegment {
  SequenceId sequence;
  std::int64_t first_row = 0;  // within ForwardBatch::tokens
  std::int64_t count = 0;
  std::int64_t first_position = 0;  // absolute position of the first of them
  std::uint64_t rope_key = 0;       // RopeTable::key_for_prompt
  // A sampled token: attended where its sequence's KV lies, if that is the host
  // (KvStore::Shape::host_attention).
  bool decode = false;
  // Whole blocks of the prompt that were computed before and whose KV was given up: attended
  // densely, and told to no attention method, which has seen them.
  bool replay = false;
};

struct ForwardBatch {
  std::span<const TokenId> tokens;           // [T]
  std::span<const BatchSegment> segments;    // cover the T rows in order
  std::span<const std::int32_t> logit_rows;  // rows of the batch whose next-token logits are wanted
};

}  // namespace triphase
