#include "scheduler/placement/host_lines.h"

#include <algorithm>

namespace triphase {

void offload_closed_blocks(PlacementLedger& ledger, std::size_t index) {
  const RunningSequence& sequence = ledger.running(index);
  const std::int64_t closed = sequence.closed_blocks(ledger.view().limits.block_tokens);
  if (closed > sequence.away_blocks()) {
    ledger.apply(Offload{sequence.id, sequence.away_blocks(), closed});
  }
}

std::int64_t prefill_blocks(const PlacementLimits& limits) {
  return limits.blocks_for(limits.prefill_chunk);
}

std::int64_t host_line_blocks(const PlacementLedger& ledger, const WaitingPrompt& prompt) {
  const PlacementLimits& limits = ledger.view().limits;
  std::int64_t there = 0;
  if (prompt.shared_blocks > 0) {
    there = std::min(ledger.running(static_cast<std::size_t>(prompt.shares_with)).away_blocks(),
                     prompt.shared_blocks);
  }
  return std::max<std::int64_t>(limits.blocks_for(prompt.max_tokens) - there, 0);
}

std::int64_t longest_host_line(const PlacementLimits& limits) {
  if (limits.device_blocks() < kHostLineDeviceBlocks + prefill_blocks(limits)) return 0;
  std::int64_t tokens = limits.host_blocks() * limits.block_tokens;
  if (limits.staging_tokens > 0) tokens = std::min(tokens, limits.staging_tokens);
  return tokens;
}

}  // namespace triphase
