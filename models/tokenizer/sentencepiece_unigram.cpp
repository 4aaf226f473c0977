#include "models/tokenizer/sentencepiece_unigram.h"

#include <algorithm>
#include <cfloat>
#include <string>

#include "base/error.h"
#include "models/tokenizer/characters.h"
#include "models/tokenizer/vocabulary.h"

namespace triphase {
namespace {

constexpr float kUnknownPenalty = 10.0F;

// The best path that ends at a byte of the text.
struct PathEnd {
  float score = 0.0F;
  std::int32_t begin = -1;  // of its last piece; -1: no path
  TokenId id = -1;
};

}  // namespace

std::optional<SentencePieceUnigram> SentencePieceUnigram::make(const SentencePieceModel& model) {
  if (model.kind != SentencePieceModel::Kind::kUnigram) return std::nullopt;
  for (const SentencePieceEntry& piece : model.pieces) {
    if (piece.text.size() > kMaxOwnPieceBytes) {
      return std::nullopt;
    }
  }
  return SentencePieceUnigram(model);
}

SentencePieceUnigram::SentencePieceUnigram(const SentencePieceModel& model)
    : text_(model), scores_(model.pieces.size()), max_score_(FLT_MIN) {
  float min_score = FLT_MAX;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceEntry& piece = model.pieces[id];
    scores_[id] = {piece.score, piece.type == PieceType::kUserDefined};
    if (piece.type == PieceType::kNormal) {
      min_score = std::min(min_score, piece.score);
      max_score_ = std::max(max_score_, piece.score);
    }
    if (piece.type == PieceType::kNormal || piece.type == PieceType::kUserDefined) {
      pieces_.add(piece.text, static_cast<std::uint32_t>(id));
    }
  }
  unknown_score_ = min_score - kUnknownPenalty;
}

void SentencePieceUnigram::encode(std::string_view text, bool dummy_prefix,
                                  std::vector<TokenId>& out) const {
  const std::string line = text_.normalized(text, dummy_prefix);
  if (line.empty()) return;
  TRIPHASE_CHECK(line.size() < static_cast<std::size_t>(INT32_MAX), "text too long");
  std::vector<PathEnd> ends(line.size() + 1);
  const auto offer = [&ends](std::size_t end, double score, std::size_t begin, TokenId id) {
    PathEnd& best = ends[end];
    if (best.begin >= 0 && !(score > static_cast<double>(best.score))) return;
    best = {static_cast<float>(score), static_cast<std::int32_t>(begin), id};
  };
  for (std::size_t begin = 0; begin < line.size();) {
    const std::size_t character = character_length(line, begin);
    const float before = ends[begin].score;
    bool known = false;
    pieces_.prefixes(line, begin, [&](std::size_t length, std::uint32_t id) {
      const Score& piece = scores_[id];
      // A user-defined piece always wins. The arithmetic is the library's, float and double.
      const double score = piece.user_defined
                               ? static_cast<double>(static_cast<float>(length) * max_score_) - 0.1
                               : static_cast<double>(piece.score);
      offer(begin + length, score + static_cast<double>(before), begin, static_cast<TokenId>(id));
      known = known || length == character;
    });
    if (!known) {
      offer(begin + character, static_cast<double>(unknown_score_ + before), begin, kNoToken);
    }
    begin += character;
  }
  struct Step {
    std::size_t begin;
    std::size_t end;
    TokenId id;
  };
  std::vector<Step> path;
  for (std::size_t end = line.size(); end > 0;) {
    const PathEnd& last = ends[end];
    TRIPHASE_CHECK(last.begin >= 0, "no path through the text");
    path.push_back({static_cast<std::size_t>(last.begin), end, last.id});
    end = static_cast<std::size_t>(last.begin);
  }
  bool after_unknown = false;
  for (auto step = path.rbegin(); step != path.rend(); ++step) {
    if (step->id == kNoToken) {
      const std::string_view character =
          std::string_view(line).substr(step->begin, step->end - step->begin);
      text_.append_unknown(character, after_unknown, out);
    } else {
      after_unknown = false;
      out.push_back(step->id);
    }
  }
}

}  // namespace triphase
