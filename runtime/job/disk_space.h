#pragma once

// Whether the disk will hold a job's output, roughly and before it starts.

#include <cstdint>
#include <string>

#include "runtime/job/prompt_file.h"
#include "runtime/options/run_options.h"

namespace triphase {

// A sentence for a warning where all records at their longest do not fit beside OUT; empty: they
// fit, or nothing can be said (prompts from a pipe). `longest_request`: tokens of a prompt and its
// completion, at most.
[[nodiscard]] std::string disk_warning(const RunOptions& options, const PromptFileFacts& prompts,
                                       std::int64_t longest_request);

}  // namespace triphase
