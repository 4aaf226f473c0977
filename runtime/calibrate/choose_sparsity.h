#pragma once

// --kv-sparsity auto: the highest KV sparsity whose next-token distributions stay near dense
// attention's on a sample of the job's own prompts. The sample is continued greedily with dense
// attention; the continuations then go through the decode path token by token, once densely and
// once for every sparsity that is tried, the highest first.

#include <optional>

#include "runtime/calibrate/sparsity_choice.h"
#include "runtime/engine/workplace.h"
#include "runtime/job/prompt_file.h"
#include "runtime/options/run_options.h"

namespace triphase {

// Does nothing without --kv-sparsity auto, and in a dry run. Else sets `options.attention`: the
// method with the chosen budget, or dense where no sparsity holds (with a warning). A job that
// began with a choice keeps it. Every shard samples the whole file and so chooses alike. Loads the
// model for itself; E-MEM-FIT where it does not fit, E-IN-SPARSITY for a damaged file of the job.
[[nodiscard]] std::optional<SparsityChoice> choose_sparsity(RunOptions& options,
                                                            const PromptFileFacts& prompts,
                                                            const Workplace& place);

}  // namespace triphase
