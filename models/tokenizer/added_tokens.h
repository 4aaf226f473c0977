#pragma once

// Tokens that are found in the text before the model sees it: special tokens and other added ones.
// Filled while loading, then immutable and thread-safe.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"

namespace triphase {

struct AddedToken {
  TokenId id = -1;
  std::string content;
  bool special = false;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = true;    // looked for after normalization, in normalized form
  std::string shown;         // what decoding gives: the normalized form if `normalized`
};

// A set of byte strings; finds the longest that starts at a position.
class TokenTrie {
 public:
  // The first of equal strings wins. Empty strings are ignored.
  void add(std::string_view text, std::uint32_t value);
  // Bytes of the longest entry that is a prefix of text[position..], 0 for none.
  [[nodiscard]] std::size_t longest(std::string_view text, std::size_t position,
                                    std::uint32_t& value) const;
  // Calls each(bytes, value) for every entry that is a prefix of text[position..], short ones
  // first.
  template <class Each>
  void prefixes(std::string_view text, std::size_t position, const Each& each) const {
    std::uint32_t node = first_[static_cast<unsigned char>(text[position])];
    for (std::size_t at = position + 1; node != 0; ++at) {
      if (nodes_[node].value != kNone) each(at - position, nodes_[node].value);
      if (at == text.size()) break;
      node = child(node, static_cast<unsigned char>(text[at]));
    }
  }
  [[nodiscard]] bool empty() const { return nodes_.empty(); }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  struct Node {
    std::uint32_t value = kNone;
    std::vector<std::pair<unsigned char, std::uint32_t>> children;  // by byte
  };
  [[nodiscard]] std::uint32_t child(std::uint32_t node, unsigned char byte) const;

  std::vector<Node> nodes_;
  std::uint32_t first_[256] = {};  // children of the root, 0 = none
};

class AddedTokens {
 public:
  // Adds a token; the caller has checked that id and content are new.
  void add(AddedToken token);
  // Gives the token of this id, which is there and has the same content, other flags.
  void replace(AddedToken token);
  void mark_special(TokenId id);  // which is there
  // Builds the search structures; `normalize` maps a token's content to its normalized form. Throws
  // kModel E-TOK-LIMIT for megabytes of added tokens.
  void finish(const std::function<std::string(std::string_view)>& normalize);

  [[nodiscard]] const AddedToken* by_id(TokenId id) const;
  [[nodiscard]] const AddedToken* by_content(std::string_view content) const;
  [[nodiscard]] const std::vector<AddedToken>& all() const { return tokens_; }

  // Calls text(begin, end) and token(id) in the order of `input`. `normalized` picks which tokens
  // are looked for; with `parse_special` false, special tokens are not.
  template <class Text, class Token>
  void split(std::string_view input, bool normalized, bool parse_special, const Text& text,
             const Token& token) const {
    std::size_t done = 0;
    Match match;
    std::size_t search = 0;
    while (find(input, normalized, parse_special, done, search, match)) {
      if (match.begin > done) text(done, match.begin);
      token(match.id);
      done = match.end;
    }
    if (done < input.size()) text(done, input.size());
  }

 private:
  struct Match {
    std::size_t begin = 0;
    std::size_t end = 0;
    TokenId id = -1;
  };
  // The next match that begins at or after `search` and `done`; moves `search` past it.
  [[nodiscard]] bool find(std::string_view input, bool normalized, bool parse_special,
                          std::size_t done, std::size_t& search, Match& match) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<TokenId, std::size_t> by_id_;
  std::unordered_map<std::string, std::size_t> by_content_;
  TokenTrie raw_;
  TokenTrie normalized_;
};

}  // namespace triphase
