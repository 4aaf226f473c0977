#include "runtime/engine/answer_channels.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

namespace triphase {
namespace {

using Tokens = std::span<const TokenId>;

// The special token of this text.
std::optional<TokenId> marker(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<TokenId> ids =
      tokenizer.encode(text, {.add_special = false, .parse_special = true});
  if (ids.size() != 1 || !tokenizer.is_special(ids.front())) return std::nullopt;
  return ids.front();
}

// Cuts what precedes the first of `ends` off `tokens`.
Tokens take_until(Tokens& tokens, std::span<const TokenId> ends) {
  const auto end = std::ranges::find_first_of(tokens, ends);
  const Tokens taken = tokens.first(static_cast<std::size_t>(end - tokens.begin()));
  tokens = tokens.subspan(taken.size());
  return taken;
}

void append_line(std::string& text, std::string_view line) {
  if (!text.empty() && !line.empty()) text += '\n';
  text += line;
}

}  // namespace

std::optional<ChannelMarkers> channel_markers(const Tokenizer& tokenizer) {
  const auto channel = marker(tokenizer, "<|channel|>");
  const auto message = marker(tokenizer, "<|message|>");
  const auto end = marker(tokenizer, "<|end|>");
  const auto start = marker(tokenizer, "<|start|>");
  if (!channel || !message || !end || !start) return std::nullopt;
  return ChannelMarkers{*channel, *message, *end, *start};
}

std::optional<AnswerChannels> answer_channels(const Tokenizer& tokenizer, Tokens tokens,
                                              std::size_t cut) {
  const auto markers = channel_markers(tokenizer);
  if (!markers) return std::nullopt;
  const auto [channel, message, end, start] = *markers;
  const std::array opening{channel};
  const std::array header_end{message, channel, start};
  const std::array body_end{end, start, channel};
  take_until(tokens, opening);
  if (tokens.empty()) return std::nullopt;
  AnswerChannels answer;
  while (!tokens.empty()) {
    tokens = tokens.subspan(1);
    const std::string header = tokenizer.decode(take_until(tokens, header_end), true);
    std::string body;
    if (!tokens.empty() && tokens.front() == message) {
      tokens = tokens.subspan(1);
      body = tokenizer.decode(take_until(tokens, body_end), true);
      if (tokens.empty()) body.resize(body.size() - std::min(cut, body.size()));
    }
    const bool call = header.find(" to=") != std::string::npos;
    if (header.starts_with("analysis") && !call) {
      append_line(answer.reasoning, body);
    } else {
      append_line(answer.content, call ? header + body : body);
    }
    take_until(tokens, opening);
  }
  return answer;
}

}  // namespace triphase
