#pragma once

// What one forward call computes: a ragged batch of any mix of prefill chunks and single decode
// tokens, laid end to end without padding.

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "kernels/sampling.h"

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
  // Its sequence decodes one token in the step after this one, unless what this step samples ends
  // it: what that step will read may be fetched already.
  bool continues = false;

  // The first block that its rows read in a layer with a sliding window; 0 for no window.
  [[nodiscard]] std::int64_t first_block_in_window(std::int64_t window,
                                                   std::int64_t block_tokens) const {
    if (window <= 0) return 0;
    return std::max<std::int64_t>(0, first_position + 1 - window) / block_tokens;
  }
};

struct ForwardBatch {
  std::span<const TokenId> tokens;           // [T]
  std::span<const BatchSegment> segments;    // cover the T rows in order
  std::span<const std::int32_t> logit_rows;  // rows of the batch whose next-token logits are wanted
  // Empty, or what Ops::sample() will be asked of the logits: so that it can be sent ahead.
  std::span<const SampleRow> sampled = {};
};

}  // namespace triphase
