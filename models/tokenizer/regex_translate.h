#pragma once

// Rewrites a pattern from Oniguruma's Ruby syntax for PCRE2, where the two differ: white space,
// word characters, and letters and digits younger than PCRE2's Unicode tables. Pure.

#include <optional>
#include <string>
#include <string_view>

namespace triphase {

struct PatternProblem {
  std::size_t offset = 0;  // in the pattern, from 0
  std::string_view found;  // a part of the pattern
};

// Nothing when the pattern uses a construct with another meaning in PCRE2; `problem` says which.
[[nodiscard]] std::optional<std::string> translate_pattern(std::string_view pattern,
                                                           PatternProblem& problem);

}  // namespace triphase
