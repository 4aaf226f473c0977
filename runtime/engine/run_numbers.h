#pragma once

// What a run measured, from the objects that counted it to the summary.

#include "runtime/engine/engine.h"
#include "runtime/engine/loaded_model.h"
#include "runtime/job/run_summary.h"

namespace triphase {

// Adds times, tokens, phases and moved bytes of one engine to `summary`, and raises its peaks,
// whether the engine ended well or not. Waits for copies under way: a trace holds them, so the sums
// do too.
// `cluster_bytes`: of the plan's scratch, the key clusters of a fixed context.
void add_run_numbers(const Engine& engine, const LoadedModel& loaded, const RunPlan& plan,
                     std::uint64_t cluster_bytes, RunSummary& summary);

}  // namespace triphase
