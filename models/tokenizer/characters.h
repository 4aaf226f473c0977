#pragma once

// Character classes of tokenizer files over valid UTF-8 text. Pure.

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "base/utf8.h"

namespace triphase {

inline constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581, a visible space

// Bytes of the character at `position`; 1 where there is none.
[[nodiscard]] inline std::size_t character_length(std::string_view text, std::size_t position) {
  return std::max<std::size_t>(1, utf8_sequence_length(text, position));
}

[[nodiscard]] bool is_white_space(char32_t code_point);  // Unicode's White_Space
[[nodiscard]] bool is_numeric(char32_t code_point);      // categories Nd, Nl, No
// ASCII's, and the categories P of Unicode 8: what Hugging Face's tokenizers split at.
[[nodiscard]] bool is_punctuation(char32_t code_point);
// Letters, marks, decimal digits, connectors and joiners: what \w means in regular expressions.
[[nodiscard]] bool is_word_character(char32_t code_point);

// Where the white space at the start of `text` ends, and where that at its end begins.
[[nodiscard]] std::size_t leading_space_end(std::string_view text);
[[nodiscard]] std::size_t trailing_space_begin(std::string_view text);

// `text` with `to` in the place of each `from`, which is not empty.
[[nodiscard]] std::string replace_each(std::string_view text, std::string_view from,
                                       std::string_view to);

[[nodiscard]] bool starts_with_word(std::string_view text);
[[nodiscard]] bool ends_with_word(std::string_view text);

}  // namespace triphase
