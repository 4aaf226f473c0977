#pragma once

// Unicode normalization as Hugging Face's tokenizers do it: with the tables of Unicode 9, so that
// characters younger than that neither move nor change. Pure.

#include <cstdint>
#include <string>
#include <string_view>

namespace triphase {

enum class UnicodeForm : std::uint8_t { kNfc, kNfd, kNfkc, kNfkd };

// Valid UTF-8 `text` in a normalization form. Unlike utf8proc_map, not quadratic in runs of
// combining marks: O(n log n).
[[nodiscard]] std::string unicode_normalized(std::string_view text, UnicodeForm form);

}  // namespace triphase
