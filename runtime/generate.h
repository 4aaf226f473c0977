#pragma once

// The story of `triphase run` and `triphase score`: a file of prompts or requests in, a file of
// completions or scores out. See generate.cpp, which reads from top to bottom in the order things
// happen.

#include "runtime/log.h"
#include "runtime/options/run_options.h"
#include "runtime/progress.h"

namespace triphase {

// Does the whole job. Returns 0 or 1 (some lines have error records); throws Error for everything
// else, and StoppedBySignal when asked to stop, with what was finished kept durable.
[[nodiscard]] int generate(RunOptions options, Progress& progress, Log& log);

}  // namespace triphase
