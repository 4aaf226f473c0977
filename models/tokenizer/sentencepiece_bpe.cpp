#include "models/tokenizer/sentencepiece_bpe.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/utf8.h"
#include "models/tokenizer/bpe_model.h"
#include "models/tokenizer/characters.h"

namespace triphase {
namespace {

// An unknown character, until its bytes are written out. Negative, so it never merges.
constexpr TokenId kUnknownSymbol = std::numeric_limits<TokenId>::min();

// User-defined pieces never merge: their ids are negative while merging.
TokenId frozen(TokenId id) { return ~id; }

bool is_ordinary(PieceType type) {
  return type == PieceType::kNormal || type == PieceType::kUserDefined;
}

}  // namespace

std::optional<SentencePieceBpe> SentencePieceBpe::make(const SentencePieceModel& model) {
  if (model.kind != SentencePieceModel::Kind::kBpe) return std::nullopt;
  for (const SentencePieceEntry& piece : model.pieces) {
    if (piece.type == PieceType::kUnused || piece.text.size() > kMaxOwnPieceBytes) {
      return std::nullopt;
    }
  }
  SentencePieceBpe bpe(model);
  bpe.build_pairs(model);
  return bpe;
}

void SentencePieceBpe::build_pairs(const SentencePieceModel& model) {
  symbols_.reserve(model.pieces.size(), model.pieces.size());
  first_extra_ = static_cast<TokenId>(model.pieces.size());
  std::vector<float> scores;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceEntry& piece = model.pieces[id];
    const auto token = static_cast<TokenId>(id);
    if (!is_ordinary(piece.type)) continue;
    static_cast<void>(symbols_.add(token, piece.text));  // no piece is there twice
    scores.push_back(piece.score);
  }
  // The best score merges first; equal scores have equal rank, so that the leftmost goes first.
  std::sort(scores.begin(), scores.end(), std::greater<>{});
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  // Characters that occur in pieces without being pieces can still merge into them.
  TokenId next_extra = first_extra_;
  const auto character_ends = [](std::string_view text) {
    std::vector<std::size_t> ends;
    for (std::size_t at = 0; at < text.size();) {
      at += utf8_sequence_length(text, at);
      ends.push_back(at);
    }
    return ends;
  };
  for (const SentencePieceEntry& piece : model.pieces) {
    if (!is_ordinary(piece.type)) continue;
    std::size_t begin = 0;
    for (const std::size_t end : character_ends(piece.text)) {
      const std::string_view character = piece.text.substr(begin, end - begin);
      if (symbols_.find(character) == kNoToken) {
        static_cast<void>(symbols_.add(next_extra++, character));
      }
      begin = end;
    }
  }
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceEntry& piece = model.pieces[id];
    if (!is_ordinary(piece.type)) continue;
    const auto better =
        std::lower_bound(scores.begin(), scores.end(), piece.score, std::greater<>{});
    const Merge merge{static_cast<std::uint32_t>(better - scores.begin()),
                      static_cast<TokenId>(id)};
    for (const std::size_t end : character_ends(piece.text)) {
      if (end == piece.text.size()) break;
      const TokenId left = symbols_.find(piece.text.substr(0, end));
      if (left == kNoToken) continue;
      const TokenId right = symbols_.find(piece.text.substr(end));
      if (right != kNoToken) merges_.set(left, right, merge);
    }
  }
  if (words_are_separable(symbols_)) metaspace_ = symbols_.find(kMetaspace);
}

void SentencePieceBpe::encode(std::string_view text, bool dummy_prefix,
                              std::vector<TokenId>& out) const {
  const std::string line = text_.normalized(text, dummy_prefix);
  const TokenTrie& user_defined = text_.user_defined();
  BpeMerger merger(merges_);
  std::vector<TokenId> word;
  std::vector<std::string_view> unknown;  // the texts of the word's unknown symbols, in order
  bool after_unknown = false;
  const auto finish_word = [&] {
    merger.merge(word, 0);
    std::size_t next_unknown = 0;
    for (const TokenId symbol : word) {
      if (symbol == kUnknownSymbol) {
        text_.append_unknown(unknown[next_unknown++], after_unknown, out);
      } else if (symbol >= first_extra_) {
        text_.append_unknown(symbols_.text(symbol), after_unknown, out);
      } else {
        after_unknown = false;
        out.push_back(symbol < 0 ? frozen(symbol) : symbol);
      }
    }
    word.clear();
    unknown.clear();
  };
  for (std::size_t at = 0; at < line.size();) {
    std::uint32_t id = 0;
    if (const std::size_t length = user_defined.longest(line, at, id)) {
      word.push_back(frozen(static_cast<TokenId>(id)));
      at += length;
      continue;
    }
    const std::size_t length = character_length(line, at);
    const std::string_view character = std::string_view(line).substr(at, length);
    const TokenId symbol = symbols_.find(character);
    // No merge crosses the start of a word where words are separable.
    if (symbol == metaspace_ && symbol != kNoToken && !word.empty() && word.back() != metaspace_) {
      finish_word();
    }
    if (symbol == kNoToken) {
      word.push_back(kUnknownSymbol);
      unknown.push_back(character);
    } else {
      word.push_back(symbol);
    }
    at += length;
  }
  finish_word();
}

}  // namespace triphase
