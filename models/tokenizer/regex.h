#pragma once

// Regular expressions of tokenizer files (Oniguruma's Ruby syntax, as Hugging Face runs them) on
// PCRE2. The patterns of the supported families are known by their exact text and run as machine
// code; any other pattern is untrusted and runs interpreted under step limits, so that no pattern
// can hang. A Regex is immutable and thread-safe; working memory is per thread.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "models/tokenizer/characters.h"

struct pcre2_real_code_8;

namespace triphase {

// GPT-2's pre-tokenizer pattern, which the ByteLevel component has built in.
extern const std::string_view kGpt2Pattern;
// Qwen2's: a directory with vocab.json does not name it.
extern const std::string_view kQwen2Pattern;

// What one encode call may still spend on untrusted patterns.
struct RegexBudget {
  int expensive_steps = 64;           // matches that needed more than the small step limit
  std::size_t most_bytes = SIZE_MAX;  // what replacing may make of a text that was not longer
};

class Regex {
 public:
  // Throws kModel E-TOK-REGEX naming `file`, the JSON `path` and the offset in the pattern.
  static Regex compile(std::string_view pattern, std::string_view file, std::string_view path);

  // Matches the literal text `text` only (a tokenizer file's "String" pattern); not empty.
  static Regex literal(std::string_view text);

  // The next match at or after `start` in UTF-8 `text`, as [begin, end). Throws kInput E-TOK-REGEX
  // when a limit is hit.
  [[nodiscard]] bool find(std::string_view text, std::size_t start, RegexBudget& budget,
                          std::size_t& begin, std::size_t& end) const;

  // Calls each(begin, end) for every match from left to right. Behind an empty one the search goes
  // on one character later.
  template <class Each>
  void for_each_match(std::string_view text, RegexBudget& budget, const Each& each) const {
    std::size_t begin = 0;
    std::size_t end = 0;
    for (std::size_t at = 0; at <= text.size() && find(text, at, budget, begin, end);) {
      each(begin, end);
      at = end + (begin == end ? character_length(text, end) : 0);
    }
  }

 private:
  [[nodiscard]] bool find_untrusted(std::string_view text, std::size_t start, RegexBudget& budget,
                                    std::size_t& begin, std::size_t& end) const;

  std::string pattern_;  // as in the file, for messages
  std::string literal_;
  std::shared_ptr<const pcre2_real_code_8> code_;  // null for literals
  bool trusted_ = false;
};

}  // namespace triphase
