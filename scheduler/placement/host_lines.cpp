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

void keep_lines_on_host(PlacementLedger& ledger) {
  const StepView& view = ledger.view();
  const PlacementLimits& limits = view.limits;
  for (std::size_t index = 0; index < view.running.size(); ++index) {
    offload_closed_blocks(ledger, index);
  }
  std::int64_t staged = 0;  // once every line has its longest length
  for (const RunningSequence& sequence : view.running) staged += sequence.max_tokens;
  for (std::size_t index = 0; index < view.waiting.size(); ++index) {
    const WaitingPrompt& prompt = view.waiting[index];
    const std::int64_t running = ledger.running_count();
    if (running >= limits.batch_size) break;
    const Admit admit{.waiting = static_cast<std::int64_t>(index),
                      .host_blocks = host_line_blocks(ledger, prompt)};
    staged += prompt.max_tokens;
    const bool fits =
        (running + 1) * kHostLineDeviceBlocks + prefill_blocks(limits) <= limits.device_blocks() &&
        ledger.admission_pages(admit) <= ledger.spare_device_pages() &&
        admit.host_blocks * limits.layers <= ledger.free_host_pages() &&
        (limits.staging_tokens == 0 || staged <= limits.staging_tokens);
    if (!fits) break;
    ledger.apply(admit);
  }
}

std::int64_t longest_host_line(const PlacementLimits& limits) {
  if (limits.device_blocks() < kHostLineDeviceBlocks + prefill_blocks(limits)) return 0;
  std::int64_t tokens = limits.host_blocks() * limits.block_tokens;
  if (limits.staging_tokens > 0) tokens = std::min(tokens, limits.staging_tokens);
  return tokens;
}

}  // namespace triphase
