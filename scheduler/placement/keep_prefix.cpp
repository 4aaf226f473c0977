#include "scheduler/placement/keep_prefix.h"

#include <algorithm>

namespace triphase {

Suspend keep_prefix(const PlacementLedger& ledger, std::size_t index) {
  const RunningSequence& sequence = ledger.running(index);
  const PlacementLimits& limits = ledger.view().limits;
  const std::int64_t room =
      sequence.away_blocks() + sequence.host_reserved + ledger.free_host_pages() / limits.layers;
  const std::int64_t kept = std::min(room, sequence.closed_blocks(limits.block_tokens));
  if (kept <= 0 || sequence.input_blocks > 0 || ledger.shared_with_others(index) > 0) {
    return {sequence.id, SuspendMode::kDrop};
  }
  return {.sequence = sequence.id, .mode = SuspendMode::kSwap, .kept_blocks = kept};
}

}  // namespace triphase
