#pragma once

// What plans and predictions take from a profile for the attention method: which share of the
// chosen tokens on the host crosses the link, and what choosing costs.

#include "runtime/log.h"
#include "runtime/options/run_options.h"
#include "scheduler/cost/hardware_profile.h"
#include "scheduler/memory_plan.h"

namespace triphase {

// Where nothing was measured: what SWA, H2O, SparQ and local attention miss of trained models on
// prompts lies between 0.04 and this (docs/kv-cache.md).
inline constexpr double kAssumedMissRate = 0.25;

// The profile's rate for this method and these options; else kAssumedMissRate. The log says which.
[[nodiscard]] double profiled_miss_rate(const HardwareProfile& profile,
                                        const AttentionOptions& attention, Log& log);

// Puts it into `options.plan.miss_rate` where that is still open and attention is sparse. Without a
// token cache every chosen token crosses, whatever was measured.
void settle_miss_rate(RunOptions& options, const HardwareProfile& profile, const MemoryPlan& memory,
                      Log& log);

// Says so where the profile does not know what choosing tokens costs under this sparse method: then
// nothing is charged for it.
void note_uncharged_choosing(const HardwareProfile& profile, const AttentionOptions& attention,
                             Log& log);

// One line of what was measured.
[[nodiscard]] std::string describe(const MissRate& rate);

}  // namespace triphase
