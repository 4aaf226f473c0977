#pragma once

// Whether the disk will hold a job's output, roughly and before it starts.

#include <cstdint>
#include <string>

#include "runtime/job/prompt_file.h"
#include "runtime/options/run_options.h"

namespace triphase {

// A sentence for a warning where OUT.part and OUT do not fit with the records that are still to
// come at their longest; empty: they fit, or nothing can be said (prompts from a pipe).
// `longest_request`: tokens of a prompt and its completion, at most. `finished`: records that
// OUT.part has.
[[nodiscard]] std::string disk_warning(const RunOptions& options, const PromptFileFacts& prompts,
                                       std::int64_t longest_request, std::uint64_t finished = 0);

}  // namespace triphase
