#pragma once

// Splits normalized text into the pieces that the model encodes one by one. Immutable and
// thread-safe.

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/regex.h"

namespace triphase {

// Pieces of one stretch of text, none of them empty, side by side in one buffer.
struct Pieces {
  std::string text;
  std::vector<std::size_t> ends;
  bool at_origin = false;  // piece 0 begins where the prompt begins

  void clear();
  void add(std::string_view piece);  // nothing when empty
  [[nodiscard]] std::size_t size() const { return ends.size(); }
  [[nodiscard]] std::string_view operator[](std::size_t index) const {
    const std::size_t begin = index == 0 ? 0 : ends[index - 1];
    return std::string_view(text).substr(begin, ends[index] - begin);
  }
};

// Splits each piece of `in` further into `out`, which is empty and begins where `in` does.
using PreTokenizer = std::function<void(const Pieces& in, Pieces& out, RegexBudget& budget)>;
using PreTokenizers = std::vector<PreTokenizer>;

// What becomes of the matches of a splitting pattern.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

enum class PrependScheme { kAlways, kFirst, kNever };

[[nodiscard]] PreTokenizer make_split(Regex pattern, SplitBehavior behavior, bool invert);
// Bytes become GPT-2's byte alphabet; with `use_regex` GPT-2's pattern splits first.
[[nodiscard]] PreTokenizer make_byte_level(bool add_prefix_space, bool use_regex);
// Spaces become `replacement`; with `split`, each piece begins with one.
[[nodiscard]] PreTokenizer make_metaspace(std::string replacement, PrependScheme scheme,
                                          bool split);
[[nodiscard]] PreTokenizer make_digits(bool individual);
[[nodiscard]] PreTokenizer make_punctuation(SplitBehavior behavior);
[[nodiscard]] PreTokenizer make_white_space_split();

// Runs all stages; `pieces` holds the text as one piece before and the result after.
void pre_tokenize(const PreTokenizers& stages, Pieces& pieces, Pieces& scratch,
                  RegexBudget& budget);

}  // namespace triphase
