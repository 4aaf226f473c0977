#pragma once

// Prompts whose tokens choose what they attend: which tokens choose together, and so have to be
// computed in one step. PURE.

#include <cstdint>

#include "scheduler/attention/attention_options.h"

namespace triphase {

// Units of `rows` tokens from position `first` on; a prompt's last unit may be shorter. Tokens
// before `first` attend densely. rows 0: the whole prompt does.
struct PromptUnits {
  std::int64_t first = 0;
  std::int64_t rows = 0;

  // Leading tokens of a prompt whose KV depends on no token behind them, so that prompts that begin
  // alike can share it.
  [[nodiscard]] std::int64_t causal_tokens(std::int64_t prompt_tokens) const {
    return rows > 0 && first < prompt_tokens ? first : prompt_tokens;
  }

  friend bool operator==(const PromptUnits&, const PromptUnits&) = default;
};

// The units of a job whose prompts begin with a fixed context of `context_tokens` tokens.
[[nodiscard]] PromptUnits prompt_units(const AttentionOptions& options,
                                       std::int64_t context_tokens);

// How many tokens of a prompt a step computes. `computed` tokens are there, `left` are not, and the
// step has room for `room`. A step begins no unit that it cannot finish.
[[nodiscard]] std::int64_t whole_units(const PromptUnits& units, std::int64_t computed,
                                       std::int64_t left, std::int64_t room);

}  // namespace triphase
