#pragma once

// Which share of the chosen tokens on the host plans and predictions take to cross the link.

#include "runtime/log.h"
#include "runtime/options/run_options.h"
#include "scheduler/cost/hardware_profile.h"
#include "scheduler/memory_plan.h"

namespace triphase {

// The profile's rate for this method and these options; else 1, the bound. The log says which.
[[nodiscard]] double profiled_miss_rate(const HardwareProfile& profile,
                                        const AttentionOptions& attention, Log& log);

// The same for a method at this KV sparsity, its other options as they are by default. Dense
// attention, and no sparsity, have nothing to look up.
[[nodiscard]] double profiled_miss_rate(const HardwareProfile& profile, AttentionKind kind,
                                        double kv_sparsity, Log& log);

// Puts it into `options.plan.miss_rate` where that is still open and attention is sparse. Without a
// token cache every chosen token crosses, whatever was measured.
void settle_miss_rate(RunOptions& options, const HardwareProfile& profile, const MemoryPlan& memory,
                      Log& log);

// One line of what was measured.
[[nodiscard]] std::string describe(const MissRate& rate);

}  // namespace triphase
