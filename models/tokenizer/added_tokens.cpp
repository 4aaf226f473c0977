#include "models/tokenizer/added_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "models/tokenizer/characters.h"

namespace triphase {
namespace {

// Bytes of all added tokens. Searching takes up to 100 bytes for each; no real tokenizer comes
// near.
constexpr std::size_t kMostAddedBytes = std::size_t{4} << 20;

}  // namespace

std::uint32_t TokenTrie::child(std::uint32_t node, unsigned char byte) const {
  const auto& children = nodes_[node].children;
  const auto found = std::lower_bound(
      children.begin(), children.end(), byte,
      [](const auto& entry, unsigned char wanted) { return entry.first < wanted; });
  return found != children.end() && found->first == byte ? found->second : 0;
}

void TokenTrie::add(std::string_view text, std::uint32_t value) {
  if (text.empty()) return;
  if (nodes_.empty()) nodes_.emplace_back();
  std::uint32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    std::uint32_t next = child(node, byte);
    if (next == 0) {
      next = static_cast<std::uint32_t>(nodes_.size());
      nodes_.emplace_back();
      auto& children = nodes_[node].children;
      children.emplace_back(byte, next);
      std::sort(children.begin(), children.end());
      if (node == 0) first_[byte] = next;
    }
    node = next;
  }
  if (nodes_[node].value == kNone) nodes_[node].value = value;
}

std::size_t TokenTrie::longest(std::string_view text, std::size_t position,
                               std::uint32_t& value) const {
  std::size_t best = 0;
  prefixes(text, position, [&](std::size_t bytes, std::uint32_t found) {
    best = bytes;
    value = found;
  });
  return best;
}

void AddedTokens::add(AddedToken token) {
  by_id_.emplace(token.id, tokens_.size());
  by_content_.emplace(token.content, tokens_.size());
  tokens_.push_back(std::move(token));
}

void AddedTokens::replace(AddedToken token) { tokens_[by_id_.at(token.id)] = std::move(token); }

void AddedTokens::mark_special(TokenId id) { tokens_[by_id_.at(id)].special = true; }

void AddedTokens::finish(const std::function<std::string(std::string_view)>& normalize) {
  std::size_t bytes = 0;
  for (AddedToken& token : tokens_) {
    token.shown = token.normalized ? normalize(token.content) : token.content;
    bytes += token.shown.size();
    if (bytes > kMostAddedBytes) {
      throw Error(ErrorRole::kModel, "E-TOK-LIMIT", "added_tokens")
          .found(fmt::format("more than {} bytes of text, normalized", kMostAddedBytes))
          .expected("fewer or shorter tokens");
    }
  }
  // When two tokens have the same normalized form, a special one wins.
  for (const bool special : {true, false}) {
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      const AddedToken& token = tokens_[i];
      if (token.special != special) continue;
      if (token.normalized) {
        normalized_.add(token.shown, static_cast<std::uint32_t>(i));
      } else {
        raw_.add(token.content, static_cast<std::uint32_t>(i));
      }
    }
  }
}

const AddedToken* AddedTokens::by_id(TokenId id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::by_content(std::string_view content) const {
  const auto found = by_content_.find(std::string(content));
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

bool AddedTokens::find(std::string_view input, bool normalized, bool parse_special,
                       std::size_t done, std::size_t& search, Match& match) const {
  const TokenTrie& trie = normalized ? normalized_ : raw_;
  if (trie.empty()) return false;
  while (search < input.size()) {
    std::uint32_t index = 0;
    const std::size_t length = trie.longest(input, search, index);
    if (length == 0) {
      ++search;
      continue;
    }
    match.begin = search;
    match.end = search + length;
    search = match.end;
    const AddedToken& token = tokens_[index];
    // Text that a token before took with its white space is not looked at again.
    if (match.begin < done || (token.special && !parse_special)) continue;
    if (token.single_word && (ends_with_word(input.substr(0, match.begin)) ||
                              starts_with_word(input.substr(match.end)))) {
      continue;
    }
    if (token.lstrip) {
      match.begin = done + trailing_space_begin(input.substr(done, match.begin - done));
    }
    if (token.rstrip) match.end += leading_space_end(input.substr(match.end));
    match.id = token.id;
    return true;
  }
  return false;
}

}  // namespace triphase
