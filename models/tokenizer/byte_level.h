#pragma once

// GPT-2's byte alphabet: each of the 256 bytes as one printable character, so that a vocabulary of
// bytes can be written as text. Pure functions.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace triphase {

// Appends the characters that stand for `bytes` (U+0021 to U+0143).
void append_byte_level(std::string_view bytes, std::string& out);

// The bytes a token of such characters stands for, or nothing when it holds another character.
[[nodiscard]] std::optional<std::string> byte_level_bytes(std::string_view token);

// The byte of a byte-fallback token "<0xHH>" (two upper-case hex digits), or nothing.
[[nodiscard]] std::optional<std::uint8_t> fallback_byte(std::string_view token);
[[nodiscard]] std::string fallback_token(std::uint8_t byte);

}  // namespace triphase
