#pragma once

// What a line's draws depend on, beside its logits, parameters and tokens: never on the batch, the
// order or a restart.

#include <cstdint>

#include "runtime/job/request.h"

namespace triphase {

// The key of a line's draws: its own seed, else a mix of the job's seed and the line's index.
[[nodiscard]] std::uint64_t line_key(const SamplingParams& params, std::uint64_t job_seed,
                                     std::uint64_t index);

}  // namespace triphase
