#pragma once

// How a sequence that has to make room waits for its return: on the host, as far as that has room,
// but for the part of its prompt that costs less to compute again than to store and bring back.

#include <cstddef>

#include "scheduler/cost/replay_costs.h"
#include "scheduler/placement/placement_ledger.h"

namespace triphase {

// The suspension of running[index]. `costs`: null, where nothing is weighed and a prefix is never
// computed again on its own.
[[nodiscard]] Suspend swap_or_drop(const PlacementLedger& ledger, std::size_t index,
                                   const ReplayCosts* costs);

}  // namespace triphase
