#pragma once

// The key of a request's random draws. They depend on it and on the request's logits, parameters
// and tokens, never on the batch, the order or a restart.

#include <cstdint>

#include "runtime/job/request.h"

namespace triphase {

// The key of a request's draws: its own seed, else a mix of the job's seed and the request's index.
// A line's several prompts have different draws.
[[nodiscard]] std::uint64_t request_key(const SamplingParams& params, std::uint64_t job_seed,
                                        std::uint64_t index, std::uint32_t part = 0);

}  // namespace triphase
