#include "models/tokenizer/characters.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/utf8.h"

namespace triphase {
namespace {

// Start of the character that ends at `end` > 0.
std::size_t character_begin(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return begin;
}

char32_t character_at(std::string_view text, std::size_t position, std::size_t& length) {
  length = utf8_sequence_length(text, position);
  if (length == 0) {
    length = 1;
    return U'\uFFFD';
  }
  return decode_utf8(text, position, length);
}

}  // namespace

bool is_white_space(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_numeric(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return true;
    default:
      return false;
  }
}

bool is_word_character(char32_t c) {
  if (c == 0x200C || c == 0x200D) return true;  // Join_Control
  if (c >= 0x24B6 && c <= 0x24E9) return true;  // circled letters are Alphabetic
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

std::size_t leading_space_end(std::string_view text) {
  std::size_t position = 0;
  std::size_t length = 0;
  while (position < text.size() && is_white_space(character_at(text, position, length))) {
    position += length;
  }
  return std::min(position, text.size());
}

std::size_t trailing_space_begin(std::string_view text) {
  std::size_t end = text.size();
  std::size_t length = 0;
  while (end > 0) {
    const std::size_t begin = character_begin(text, end);
    if (!is_white_space(character_at(text, begin, length))) break;
    end = begin;
  }
  return end;
}

bool starts_with_word(std::string_view text) {
  std::size_t length = 0;
  return !text.empty() && is_word_character(character_at(text, 0, length));
}

bool ends_with_word(std::string_view text) {
  std::size_t length = 0;
  return !text.empty() &&
         is_word_character(character_at(text, character_begin(text, text.size()), length));
}

}  // namespace triphase
