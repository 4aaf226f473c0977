#include "models/tokenizer/bpe_model.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "models/tokenizer/byte_level.h"
#include "models/tokenizer/characters.h"

namespace triphase {

bool words_are_separable(const Vocabulary& vocabulary) {
  for (std::int64_t id = 0; id < vocabulary.end_id(); ++id) {
    std::string_view text = vocabulary.text(static_cast<TokenId>(id));
    while (text.starts_with(kMetaspace)) text.remove_prefix(kMetaspace.size());
    if (text.find(kMetaspace) != std::string_view::npos) return false;
  }
  return true;
}

BpeModel::BpeModel(Vocabulary vocabulary, MergeTable merges, const Options& options)
    : vocabulary_(std::move(vocabulary)), merges_(std::move(merges)), options_(options) {
  characters_.assign(kTableEnd, kNoToken);
  std::string character;
  for (char32_t code_point = 0; code_point < kTableEnd; ++code_point) {
    character.clear();
    append_utf8(code_point, character);
    characters_[code_point] = vocabulary_.find(character);
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    fallback_bytes_[byte] = vocabulary_.find(fallback_token(static_cast<std::uint8_t>(byte)));
  }
  if (words_are_separable(vocabulary_)) metaspace_ = vocabulary_.find(kMetaspace);
}

TokenId BpeModel::character_token(std::string_view character) const {
  const char32_t code_point = decode_utf8(character, 0, character.size());
  return code_point < kTableEnd ? characters_[code_point] : vocabulary_.find(character);
}

// `pending`: an unknown token was seen and waits for more characters to join it.
void BpeModel::append_unknown(std::string_view character, bool& pending,
                              std::vector<TokenId>& out) const {
  if (options_.byte_fallback) {
    const bool all = std::all_of(character.begin(), character.end(), [this](char c) {
      return fallback_bytes_[static_cast<unsigned char>(c)] != kNoToken;
    });
    if (all) {
      for (const char c : character) out.push_back(fallback_bytes_[static_cast<unsigned char>(c)]);
      return;
    }
  }
  if (options_.unknown == kNoToken) return;
  if (pending && !options_.fuse_unknown) out.push_back(options_.unknown);
  pending = true;
}

void BpeModel::encode(std::string_view piece, BpeMerger& merger, std::vector<TokenId>& out) const {
  if (options_.ignore_merges) {
    const TokenId whole = vocabulary_.find(piece);
    if (whole != kNoToken) {
      out.push_back(whole);
      return;
    }
  }
  const std::size_t begin = out.size();
  bool pending = false;
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t length = character_length(piece, at);
    const std::string_view character = piece.substr(at, length);
    at += length;
    const TokenId token = character_token(character);
    if (token == kNoToken) {
      append_unknown(character, pending, out);
      continue;
    }
    if (std::exchange(pending, false)) out.push_back(options_.unknown);
    out.push_back(token);
  }
  if (pending) out.push_back(options_.unknown);
  merge_words(begin, merger, out);
}

// Symbols of one word at a time stay in the cache; see words_are_separable.
void BpeModel::merge_words(std::size_t begin, BpeMerger& merger, std::vector<TokenId>& out) const {
  if (metaspace_ == kNoToken) {
    merger.merge(out, begin);
    return;
  }
  std::vector<TokenId> word;
  const std::size_t end = out.size();
  std::size_t kept = begin;
  for (std::size_t at = begin; at < end;) {
    std::size_t stop = at + 1;
    while (stop < end && (out[stop] != metaspace_ || out[stop - 1] == metaspace_)) ++stop;
    word.assign(out.begin() + static_cast<std::ptrdiff_t>(at),
                out.begin() + static_cast<std::ptrdiff_t>(stop));
    merger.merge(word, 0);
    std::copy(word.begin(), word.end(), out.begin() + static_cast<std::ptrdiff_t>(kept));
    kept += word.size();
    at = stop;
  }
  out.resize(kept);
}

}  // namespace triphase
