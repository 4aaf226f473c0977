#pragma once

// UTF-8 as Unicode defines it (no surrogates, no overlong forms, at most U+10FFFF).

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace triphase {

// Bytes of the well-formed sequence that starts at `position`, or 0 when there is none there.
[[nodiscard]] std::size_t utf8_sequence_length(std::string_view text, std::size_t position);

// Position of the first byte that is not part of well-formed UTF-8, or npos.
[[nodiscard]] std::size_t first_invalid_utf8(std::string_view text);

// Characters of well-formed text: every byte that does not continue one.
[[nodiscard]] std::int64_t count_characters(std::string_view text);

// `text` behind a byte order mark, if it begins with one.
[[nodiscard]] std::string_view without_bom(std::string_view text);

// Code point of a well-formed sequence of `length` bytes (from utf8_sequence_length).
[[nodiscard]] char32_t decode_utf8(std::string_view text, std::size_t position, std::size_t length);

void append_utf8(char32_t code_point, std::string& out);

// Every maximal ill-formed part becomes one U+FFFD (Unicode's recommended practice).
[[nodiscard]] std::string replace_invalid_utf8(std::string_view text);

}  // namespace triphase
