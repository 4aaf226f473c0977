#pragma once

// How a sequence that has to make room leaves its prefix behind, after vLLM's offloading connector:
// its closed blocks wait on the host, as many as it has room for, and are brought back when it
// resumes; the tokens after them are computed again.

#include <cstddef>

#include "scheduler/placement/placement_ledger.h"

namespace triphase {

// The suspension of running[index]; it keeps nothing where the host has no room, where it has no
// closed block, and where it shares blocks with others.
[[nodiscard]] Suspend keep_prefix(const PlacementLedger& ledger, std::size_t index);

}  // namespace triphase
