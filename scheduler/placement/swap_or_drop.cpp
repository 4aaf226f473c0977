#include "scheduler/placement/swap_or_drop.h"

#include <algorithm>

namespace triphase {
namespace {

// Most leading blocks that the sequence may drop: it has to come back to the device as a whole.
std::int64_t most_dropped(const PlacementLedger& ledger, std::size_t index) {
  const RunningSequence& sequence = ledger.running(index);
  const PlacementLimits& limits = ledger.view().limits;
  // With what its next step adds it must fit when it runs alone.
  const std::int64_t prompt_left = sequence.prefill_tokens - sequence.context;
  const std::int64_t whole = limits.blocks_for(
      sequence.context + std::clamp<std::int64_t>(prompt_left, 1, limits.prefill_chunk));
  if (limits.prefill_chunk < limits.block_tokens || whole > limits.device_blocks()) return 0;
  if (sequence.recompute_blocks > 0 || ledger.shared_with_others(index) > 0) return 0;
  return sequence.replayable_blocks;
}

}  // namespace

Suspend swap_or_drop(const PlacementLedger& ledger, std::size_t index, const ReplayCosts* costs) {
  const RunningSequence& sequence = ledger.running(index);
  const PlacementLimits& limits = ledger.view().limits;
  const std::int64_t room = ledger.free_host_pages() / limits.layers + sequence.host_reserved;
  const auto fits = [&](std::int64_t dropped) {
    return ledger.swap_host_blocks(index, dropped) <=
           room + std::min(dropped, sequence.away_blocks());
  };
  // What is being computed again is not there to be stored.
  std::int64_t least = sequence.replay_tokens / limits.block_tokens;
  const std::int64_t most = std::max(least, costs == nullptr ? 0 : most_dropped(ledger, index));
  while (least <= most && !fits(least)) ++least;
  if (least > most) return {sequence.id, SuspendMode::kDrop};
  Suspend suspend{sequence.id, SuspendMode::kSwap, least};
  if (costs != nullptr) {
    suspend.dropped_blocks = costs->cheapest({.blocks = sequence.blocks(),
                                              .stored_blocks = sequence.away_blocks(),
                                              .block_tokens = limits.block_tokens,
                                              .prefill_chunk = limits.prefill_chunk},
                                             least, most);
  }
  return suspend;
}

}  // namespace triphase
