#pragma once

// The tasks of `triphase eval` that generate: greedy completions compared with given answers.

#include <string>
#include <string_view>
#include <vector>

#include "runtime/eval/eval.h"
#include "runtime/job/prompt_preparer.h"

namespace triphase::eval {

struct GenerationOptions {
  bool summarize = false;  // ROUGE-L instead of exact match
  std::int64_t max_tokens = 64;
  std::vector<std::string> stop;
};

// Lines: {"prompt", "answer"}; answer may be an array of accepted texts. Exact match compares after
// trimming white space; ROUGE-L takes the best of the answers.
[[nodiscard]] std::vector<Row> generate_and_compare(const Setup& setup,
                                                    const GenerationOptions& options,
                                                    std::string_view jsonl);
// Tokens of KV that the longest of those completions needs.
[[nodiscard]] std::int64_t longest_completion(const Setup& setup, const GenerationOptions& options,
                                              const PromptPreparer& preparer,
                                              std::string_view jsonl);

}  // namespace triphase::eval
