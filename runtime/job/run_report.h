#pragma once

// How a run went, as lines of the log for people. The summary file has all numbers.

#include "runtime/job/run_summary.h"
#include "runtime/log.h"

namespace triphase {

// Phases that were met, what a fixed context spared, and last what came out and how to go on.
void report_run(const RunOptions& options, const RunSummary& summary, Log& log);

}  // namespace triphase
