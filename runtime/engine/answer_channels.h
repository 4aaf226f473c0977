#pragma once

// gpt-oss answers in channels, each "<|channel|>NAME<|message|>TEXT<|end|>": what it thinks
// (analysis), calls of tools (commentary to=NAME) and what the user reads (final).

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "models/tokenizer/tokenizer.h"

namespace triphase {

struct AnswerChannels {
  std::string content;    // of final, and what commentary says; a call with its header
  std::string reasoning;  // of analysis
};

// The special tokens between headers and texts.
struct ChannelMarkers {
  TokenId channel;
  TokenId message;
  TokenId end;
  TokenId start;
};

// Nothing where the tokenizer has no such special tokens.
[[nodiscard]] std::optional<ChannelMarkers> channel_markers(const Tokenizer& tokenizer);

// `tokens`: a completion behind "<|start|>assistant". `cut`: bytes that a stop string takes off the
// text that it ends in. Nothing where it opens no channel.
[[nodiscard]] std::optional<AnswerChannels> answer_channels(const Tokenizer& tokenizer,
                                                            std::span<const TokenId> tokens,
                                                            std::size_t cut = 0);

}  // namespace triphase
