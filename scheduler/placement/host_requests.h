#pragma once

// Rules of the policies that keep whole sequences on the host (`accelerate`, `flexgen`, `zero`). A
// request's full blocks leave the device before the next step. So it holds at most its partial
// block there, and one more while a step runs.

#include <cstdint>

#include "scheduler/placement/placement_step.h"

namespace triphase {

inline constexpr std::int64_t kHostRequestDeviceBlocks = 2;

// Offloads every full block of a running request that is still on the device.
void offload_full_blocks(PlacementStep& step, SequenceId id);

// Device blocks that one step's prompt tokens may take beside what each request holds.
[[nodiscard]] std::int64_t prefill_blocks(const PlacementLimits& limits);

// Host blocks to reserve for a request whose every block ends up there.
[[nodiscard]] std::int64_t host_request_blocks(const PlacementStep& step,
                                               const WaitingRequest& request);

// All requests live there: full blocks leave, and prompts are admitted in order as far as both
// tiers and staging hold them at their longest.
void keep_requests_on_host(PlacementStep& step);

// Longest request when every full block may be on the host.
[[nodiscard]] std::int64_t longest_host_request(const PlacementLimits& limits);

}  // namespace triphase
