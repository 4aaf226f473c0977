#pragma once

// What happens to text before it is split: Unicode normalization, prefixes, replacements. Immutable
// and thread-safe.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/regex.h"

namespace triphase {

// Tables of Unicode 9, as in Hugging Face's tokenizers: characters younger than that neither move
// nor change.
enum class UnicodeForm : std::uint8_t { kNfc, kNfd, kNfkc, kNfkd };

// Valid UTF-8 `text` in a normalization form. Unlike utf8proc_map, not quadratic in runs of
// combining marks: O(n log n).
[[nodiscard]] std::string unicode_normalized(std::string_view text, UnicodeForm form);

// Rewrites valid UTF-8 in place; about linear in its length.
using Normalizer = std::function<void(std::string& text, RegexBudget& budget)>;
using Normalizers = std::vector<Normalizer>;

[[nodiscard]] Normalizer make_unicode_normalizer(UnicodeForm form);
// Puts `prefix` before any text that is not empty.
[[nodiscard]] Normalizer make_prepend_normalizer(std::string prefix);
[[nodiscard]] Normalizer make_replace_normalizer(Regex pattern, std::string content);
// Removes white space at the ends.
[[nodiscard]] Normalizer make_strip_normalizer(bool left, bool right);

// Throws kInput E-TOK-LIMIT where replacing makes the text many times longer.
void normalize(const Normalizers& normalizers, std::string& text, RegexBudget& budget);

// Every match of `pattern` becomes `content`. Throws kInput E-TOK-LIMIT beyond `budget`.
[[nodiscard]] std::string replaced(std::string_view text, const Regex& pattern,
                                   std::string_view content, RegexBudget& budget);

}  // namespace triphase
