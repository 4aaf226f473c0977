#pragma once

// What it costs to have the KV of a suspended sequence again: a prefix computed from its token ids,
// the rest stored on the host and brought back. PURE. By this policies choose how long the prefix
// is.
//
// Storing is waited for, since the sequence makes room; on its return the prefix is computed while
// the rest crosses the link. So with a prefix of r of n blocks
//   seconds(r) = store(n - r) + max(reload(n - r), replay(r)),
// where replay is prefill in chunks, each after the ones before it. What is weighed is a whole
// sequence once: replaying never pays in every step (kv-movement.md, row G).

#include <cstdint>

#include "scheduler/cost/step_cost.h"

namespace triphase {

class ReplayCosts {
 public:
  struct Sequence {
    std::int64_t blocks = 0;
    std::int64_t stored_blocks = 0;  // leading ones that are on the host already
    std::int64_t block_tokens = 0;
    std::int64_t prefill_chunk = 0;  // at least a block
  };

  // `token_bytes`: K and V of a token in one layer as it crosses the link. A block moves in one
  // copy per layer.
  ReplayCosts(const CostModel& cost, std::int64_t layers, double token_bytes)
      : cost_(cost), layers_(layers), token_bytes_(token_bytes) {}

  // Of a replayed prefix of so many blocks.
  [[nodiscard]] double seconds(const Sequence& sequence, std::int64_t replayed_blocks) const;

  // The cheapest prefix of [least, most] blocks; of equals the shortest.
  [[nodiscard]] std::int64_t cheapest(const Sequence& sequence, std::int64_t least,
                                      std::int64_t most) const;

 private:
  [[nodiscard]] double replay(const Sequence& sequence, std::int64_t blocks) const;

  CostModel cost_;
  std::int64_t layers_;
  double token_bytes_;
};

}  // namespace triphase
