#pragma once

// A sample of the job's own prompts, for what is measured on them before the job.

#include <cstdint>
#include <vector>

#include "runtime/engine/model_bundle.h"
#include "runtime/job/prompt_file.h"
#include "runtime/job/request.h"
#include "runtime/options/run_options.h"

namespace triphase {

inline constexpr std::int64_t kSamplePrompts = 16;
inline constexpr std::int64_t kSampleNewTokens = 128;  // at most, of one completion

struct SampleLimits {
  std::int64_t new_tokens = kSampleNewTokens;  // of one completion
  std::int64_t request_tokens = 0;             // longest request
  std::int64_t prompt_tokens = INT64_MAX;      // of all prompts together; the first may be longer
};

// At most kSamplePrompts lines spread over the whole file, greedy and of bounded length, as token
// ids; always the same ones. Lines that cannot run are passed over. `prompts` must be rereadable;
// `options.files.shard` says which lines there are.
[[nodiscard]] std::vector<Request> sample_prompts(const RunOptions& options,
                                                  const ModelBundle& model,
                                                  const PromptFileFacts& prompts,
                                                  const SampleLimits& limits);

}  // namespace triphase
