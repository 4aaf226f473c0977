#include "models/tokenizer/byte_level.h"

#include <array>

#include "base/utf8.h"

namespace triphase {
namespace {

constexpr std::size_t kAlphabetEnd = 256 + 68;  // 68 bytes have no printable character of their own

struct Alphabet {
  std::array<char32_t, 256> char_of{};
  std::array<std::int16_t, kAlphabetEnd> byte_of{};
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  for (auto& byte : alphabet.byte_of) byte = -1;
  char32_t next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const char32_t symbol = printable ? byte : next++;
    alphabet.char_of[byte] = symbol;
    alphabet.byte_of[symbol] = static_cast<std::int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();
constexpr std::string_view kHexDigits = "0123456789ABCDEF";

}  // namespace

void append_byte_level(std::string_view bytes, std::string& out) {
  for (const char byte : bytes) {
    append_utf8(kAlphabet.char_of[static_cast<std::uint8_t>(byte)], out);
  }
}

std::optional<std::string> byte_level_bytes(std::string_view token) {
  std::string bytes;
  std::size_t position = 0;
  while (position < token.size()) {
    const std::size_t length = utf8_sequence_length(token, position);
    if (length == 0) return std::nullopt;
    const char32_t symbol = decode_utf8(token, position, length);
    if (symbol >= kAlphabetEnd || kAlphabet.byte_of[symbol] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kAlphabet.byte_of[symbol]));
    position += length;
  }
  return bytes;
}

std::optional<std::uint8_t> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const std::size_t high = kHexDigits.find(token[3]);
  const std::size_t low = kHexDigits.find(token[4]);
  if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
  return static_cast<std::uint8_t>(high * 16 + low);
}

std::string fallback_token(std::uint8_t byte) {
  return std::string("<0x") + kHexDigits[byte >> 4] + kHexDigits[byte & 15] + ">";
}

}  // namespace triphase
