#include "base/utf8.h"

#include <algorithm>

namespace triphase {
namespace {

unsigned char at(std::string_view text, std::size_t position) {
  return static_cast<unsigned char>(text[position]);
}

// Length and the allowed range of the second byte for a lead byte (Unicode table 3-7).
struct Lead {
  std::size_t length;
  unsigned char second_min;
  unsigned char second_max;
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte >= 0xC2 && byte <= 0xDF) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// Bytes of the longest prefix of a well-formed sequence at `position` (at least 1).
std::size_t maximal_subpart(std::string_view text, std::size_t position) {
  const Lead lead = lead_of(at(text, position));
  if (lead.length < 2) return 1;
  std::size_t taken = 1;
  while (taken < lead.length && position + taken < text.size()) {
    const unsigned char byte = at(text, position + taken);
    const unsigned char low = taken == 1 ? lead.second_min : 0x80;
    const unsigned char high = taken == 1 ? lead.second_max : 0xBF;
    if (byte < low || byte > high) break;
    ++taken;
  }
  return taken;
}

}  // namespace

std::int64_t count_characters(std::string_view text) {
  return std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

std::string_view without_bom(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (text.starts_with(kMark)) text.remove_prefix(kMark.size());
  return text;
}

std::size_t utf8_sequence_length(std::string_view text, std::size_t position) {
  if (position >= text.size()) return 0;
  const Lead lead = lead_of(at(text, position));
  if (lead.length == 0 || position + lead.length > text.size()) return 0;
  return maximal_subpart(text, position) == lead.length ? lead.length : 0;
}

std::size_t first_invalid_utf8(std::string_view text) {
  std::size_t position = 0;
  while (position < text.size()) {
    if (at(text, position) < 0x80) {
      ++position;
      continue;
    }
    const std::size_t length = utf8_sequence_length(text, position);
    if (length == 0) return position;
    position += length;
  }
  return std::string_view::npos;
}

char32_t decode_utf8(std::string_view text, std::size_t position, std::size_t length) {
  const auto lead = static_cast<char32_t>(at(text, position));
  if (length == 1) return lead;
  char32_t code_point = lead & (0xFFu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    code_point = (code_point << 6) | (static_cast<char32_t>(at(text, position + i)) & 0x3F);
  }
  return code_point;
}

void append_utf8(char32_t code_point, std::string& out) {
  const auto push = [&out](char32_t value) { out.push_back(static_cast<char>(value)); };
  if (code_point < 0x80) {
    push(code_point);
  } else if (code_point < 0x800) {
    push(0xC0 | (code_point >> 6));
    push(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    push(0xE0 | (code_point >> 12));
    push(0x80 | ((code_point >> 6) & 0x3F));
    push(0x80 | (code_point & 0x3F));
  } else {
    push(0xF0 | (code_point >> 18));
    push(0x80 | ((code_point >> 12) & 0x3F));
    push(0x80 | ((code_point >> 6) & 0x3F));
    push(0x80 | (code_point & 0x3F));
  }
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::size_t position = 0;
  while (position < text.size()) {
    const std::size_t length = utf8_sequence_length(text, position);
    if (length != 0) {
      out.append(text.substr(position, length));
      position += length;
    } else {
      out += "\xEF\xBF\xBD";
      position += maximal_subpart(text, position);
    }
  }
  return out;
}

}  // namespace triphase
