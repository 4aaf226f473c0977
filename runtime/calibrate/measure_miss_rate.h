#pragma once

// The miss rate of a sparse attention method on the user's own prompts: a sample of them is
// completed greedily with a part of its KV on the host, and the engine counts which of the chosen
// tokens there the link had to bring.

#include <optional>

#include "runtime/engine/workplace.h"
#include "runtime/job/prompt_file.h"
#include "runtime/options/run_options.h"
#include "scheduler/cost/hardware_profile.h"

namespace triphase {

// `options`: model, prompts, how lines are read, the sparse attention method, KV type; budgets,
// policy and link are the measurement's own. `prompts` must be rereadable. Nothing, with a warning
// that says why: no line can run, the sample is too short for KV to leave the device, or nothing
// was chosen there. Loads the model for itself; E-MEM-FIT where it does not fit.
[[nodiscard]] std::optional<MissRate> measure_miss_rate(const RunOptions& options,
                                                        const PromptFileFacts& prompts,
                                                        const Workplace& place);

}  // namespace triphase
