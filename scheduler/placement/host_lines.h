#pragma once

// Rules that policies with whole sequences on the host share (`accelerate`, `flexgen`, `zero`): a
// line's closed blocks leave the device before the next step, so that it holds at most its open
// block, and one more while a step runs.

#include <cstdint>

#include "scheduler/placement/placement_ledger.h"

namespace triphase {

inline constexpr std::int64_t kHostLineDeviceBlocks = 2;

// Offloads every closed block of running[index] that is still on the device.
void offload_closed_blocks(PlacementLedger& ledger, std::size_t index);

// Device blocks that one step's prompt tokens may take beside what each line holds.
[[nodiscard]] std::int64_t prefill_blocks(const PlacementLimits& limits);

// Host blocks to reserve for a line whose every block ends up there.
[[nodiscard]] std::int64_t host_line_blocks(const PlacementLedger& ledger,
                                            const WaitingPrompt& prompt);

// All lines live there: closed blocks leave, and prompts are admitted in order as far as both tiers
// and staging hold them at their longest.
void keep_lines_on_host(PlacementLedger& ledger);

// Longest line when every closed block may be on the host.
[[nodiscard]] std::int64_t longest_host_line(const PlacementLimits& limits);

}  // namespace triphase
