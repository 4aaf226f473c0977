#pragma once

// Our own reader of SentencePiece model files. libsentencepiece crashes on crafted models, so every
// byte is walked here first, and what is returned has been validated: sizes, types, scores, byte
// pieces and the normalization trie. The views point into the model's bytes. Pure.

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace triphase {

enum class PieceType : std::uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct SentencePieceEntry {
  std::string_view text;
  float score = 0.0F;
  PieceType type = PieceType::kNormal;
};

struct SentencePieceModel {
  enum class Kind : std::uint8_t { kUnigram = 1, kBpe = 2 };
  Kind kind = Kind::kUnigram;
  std::vector<SentencePieceEntry> pieces;  // by id
  std::int32_t unknown_id = -1;
  bool byte_fallback = false;
  bool whitespace_as_suffix = false;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  std::string_view charsmap;  // precompiled normalization rules; empty: none
  std::string_view bos_piece = "<s>";
  std::string_view eos_piece = "</s>";
};

// Throws kModel E-TOK-FORMAT, E-TOK-LIMIT, E-TOK-PIECE, E-TOK-CHARSMAP or E-TOK-TIKTOKEN.
[[nodiscard]] SentencePieceModel check_sentencepiece(std::string_view bytes, std::string_view file);

inline constexpr std::size_t kMaxSentencePieceBytes = 64 << 20;
// Models with longer pieces are left to libsentencepiece: with BPE every split of every piece is
// looked at once, which is quadratic in a piece's length.
inline constexpr std::size_t kMaxOwnPieceBytes = 256;

}  // namespace triphase
