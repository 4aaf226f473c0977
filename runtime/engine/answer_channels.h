#pragma once

// gpt-oss answers in channels, each "<|channel|>NAME<|message|>TEXT<|end|>": what it thinks
// (analysis), calls of tools (commentary to=NAME) and what the user reads (final).

#include <optional>
#include <span>
#include <string>

#include "models/tokenizer/tokenizer.h"

namespace triphase {

struct AnswerChannels {
  std::string content;    // of final, and what commentary says; a call with its header
  std::string reasoning;  // of analysis
};

// `tokens`: a completion behind "<|start|>assistant". Nothing where it opens no channel, or where
// the tokenizer has no such special tokens.
[[nodiscard]] std::optional<AnswerChannels> answer_channels(const Tokenizer& tokenizer,
                                                            std::span<const TokenId> tokens);

}  // namespace triphase
