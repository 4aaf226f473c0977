#pragma once

// Character classes of tokenizer files over valid UTF-8 text. Pure.

#include <cstddef>
#include <string_view>

namespace triphase {

inline constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581, a visible space

[[nodiscard]] bool is_white_space(char32_t code_point);  // Unicode's White_Space
[[nodiscard]] bool is_numeric(char32_t code_point);      // categories Nd, Nl, No
// ASCII's, and the categories P of Unicode 8: what Hugging Face's tokenizers split at.
[[nodiscard]] bool is_punctuation(char32_t code_point);
// Letters, marks, decimal digits, connectors and joiners: what \w means in regular expressions.
[[nodiscard]] bool is_word_character(char32_t code_point);

// Where the white space at the start of `text` ends, and where that at its end begins.
[[nodiscard]] std::size_t leading_space_end(std::string_view text);
[[nodiscard]] std::size_t trailing_space_begin(std::string_view text);

[[nodiscard]] bool starts_with_word(std::string_view text);
[[nodiscard]] bool ends_with_word(std::string_view text);

}  // namespace triphase
