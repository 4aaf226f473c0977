#include "models/tokenizer/sentencepiece_check.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <unordered_set>

#include "base/utf8.h"
#include "models/tokenizer/byte_level.h"
#include "models/tokenizer/sentencepiece_charsmap.h"

namespace triphase {
namespace {

constexpr std::size_t kMaxPieceBytes = 4096;
constexpr std::size_t kMaxPieces = std::size_t{1} << 22;

// A field of a protocol buffer message.
struct WireField {
  std::uint32_t number = 0;
  std::uint32_t type = 0;  // 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes
  std::uint64_t varint = 0;
  std::string_view bytes;
};

// Walks the fields of one message; stops for good at the first malformed one.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : rest_(bytes) {}

  // False at the end and on malformed input; malformed() tells which.
  bool next(WireField& field) {
    if (rest_.empty() || malformed_) return false;
    std::uint64_t tag = 0;
    if (!varint(tag) || (tag >> 3) == 0 || (tag >> 3) > 536870911) return fail();
    field.number = static_cast<std::uint32_t>(tag >> 3);
    field.type = static_cast<std::uint32_t>(tag & 7);
    std::uint64_t length = 0;
    switch (field.type) {
      case 0:
        return varint(field.varint) || fail();
      case 1:
        return take(8, field.bytes) || fail();
      case 2:
        return (varint(length) && take(length, field.bytes)) || fail();
      case 5:
        return take(4, field.bytes) || fail();
      default:  // groups: nothing in this format has them
        return fail();
    }
  }
  [[nodiscard]] bool malformed() const { return malformed_; }

 private:
  bool fail() {
    malformed_ = true;
    return false;
  }
  bool take(std::uint64_t length, std::string_view& bytes) {
    if (length > rest_.size()) return false;
    bytes = rest_.substr(0, static_cast<std::size_t>(length));
    rest_.remove_prefix(static_cast<std::size_t>(length));
    return true;
  }
  bool varint(std::uint64_t& value) {
    value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return false;
      const auto byte = static_cast<unsigned char>(rest_[0]);
      rest_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  std::string_view rest_;
  bool malformed_ = false;
};

class Checker {
 public:
  explicit Checker(std::string_view file) : file_(file) {}

  SentencePieceModel run(std::string_view bytes) {
    walk(bytes, "model", [this](const WireField& field) { model_field(field); });
    if (model_.pieces.empty()) throw error("E-TOK-FORMAT", "pieces", "none", "at least one");
    check_pieces();
    if (!model_.charsmap.empty() && !Charsmap::parse(model_.charsmap)) {
      throw error("E-TOK-CHARSMAP", "normalizer_spec.precompiled_charsmap",
                  "a table that leads outside of itself", "a valid normalization table");
    }
    return std::move(model_);
  }

 private:
  [[nodiscard]] Error error(std::string_view code, std::string_view field, std::string_view found,
                            std::string_view expected) const {
    Error result(ErrorRole::kModel, code, field);
    result.file(file_).found(found).expected(expected);
    return result;
  }

  template <class Each>
  void walk(std::string_view bytes, std::string_view name, const Each& each) {
    WireReader reader(bytes);
    WireField field;
    while (reader.next(field)) each(field);
    if (reader.malformed()) {
      throw error("E-TOK-FORMAT", name, "bytes that are not a protocol buffer message",
                  "a SentencePiece model");
    }
  }

  // The field must have been written with this wire type.
  void need(const WireField& field, std::uint32_t type, std::string_view name) const {
    if (field.type != type) {
      throw error("E-TOK-FORMAT", name, fmt::format("wire type {}", field.type),
                  fmt::format("wire type {}", type));
    }
  }

  void model_field(const WireField& field) {
    switch (field.number) {
      case 1:
        need(field, 2, "pieces");
        if (model_.pieces.size() == kMaxPieces) {
          throw error("E-TOK-LIMIT", "pieces", fmt::format("more than {}", kMaxPieces),
                      "a smaller vocabulary");
        }
        add_piece(field.bytes);
        break;
      case 2:
        need(field, 2, "trainer_spec");
        walk(field.bytes, "trainer_spec", [this](const WireField& f) { trainer_field(f); });
        break;
      case 3:
        need(field, 2, "normalizer_spec");
        walk(field.bytes, "normalizer_spec", [this](const WireField& f) { normalizer_field(f); });
        break;
      case 5:
        need(field, 2, "denormalizer_spec");
        walk(field.bytes, "denormalizer_spec", [this](const WireField& f) {
          if (f.number == 2 && f.type == 2 && !f.bytes.empty()) {
            throw error("E-TOK-CHARSMAP", "denormalizer_spec.precompiled_charsmap",
                        fmt::format("{} bytes", f.bytes.size()), "none");
          }
        });
        break;
      default:
        break;
    }
  }

  void add_piece(std::string_view bytes) {
    const std::string name = fmt::format("pieces[{}]", model_.pieces.size());
    SentencePieceEntry piece;
    walk(bytes, name, [&](const WireField& field) {
      if (field.number == 1) {
        need(field, 2, name);
        piece.text = field.bytes;
      } else if (field.number == 2) {
        need(field, 5, name);
        std::memcpy(&piece.score, field.bytes.data(), sizeof(piece.score));
      } else if (field.number == 3) {
        need(field, 0, name);
        if (field.varint < 1 || field.varint > 6) {
          throw error("E-TOK-PIECE", name, fmt::format("type {}", field.varint), "types 1 to 6");
        }
        piece.type = static_cast<PieceType>(field.varint);
      }
    });
    if (piece.text.empty()) throw error("E-TOK-PIECE", name, "an empty piece", "text");
    if (piece.text.size() > kMaxPieceBytes) {
      throw error("E-TOK-LIMIT", name, fmt::format("{} bytes", piece.text.size()),
                  fmt::format("at most {}", kMaxPieceBytes));
    }
    if (first_invalid_utf8(piece.text) != std::string_view::npos) {
      throw error("E-TOK-PIECE", name, "invalid UTF-8", "UTF-8 text");
    }
    if (!std::isfinite(piece.score)) {
      throw error("E-TOK-PIECE", name, "a score that is not a number", "a finite score");
    }
    model_.pieces.push_back(piece);
  }

  void read(const WireField& field, std::string_view name, bool& value) const {
    need(field, 0, name);
    value = field.varint != 0;
  }
  void read(const WireField& field, std::string_view name, std::string_view& value) const {
    need(field, 2, name);
    value = field.bytes;
  }

  void trainer_field(const WireField& field) {
    constexpr std::string_view kType = "trainer_spec.model_type";
    if (field.number == 3) {
      need(field, 0, kType);
      if (field.varint != 1 && field.varint != 2) {
        throw error("E-TOK-COMPONENT", kType, std::to_string(field.varint),
                    "1 (unigram) or 2 (BPE)");
      }
      model_.kind = static_cast<SentencePieceModel::Kind>(field.varint);
    } else if (field.number == 24) {
      read(field, "trainer_spec.treat_whitespace_as_suffix", model_.whitespace_as_suffix);
    } else if (field.number == 35) {
      read(field, "trainer_spec.byte_fallback", model_.byte_fallback);
    } else if (field.number == 46) {
      read(field, "trainer_spec.bos_piece", model_.bos_piece);
    } else if (field.number == 47) {
      read(field, "trainer_spec.eos_piece", model_.eos_piece);
    }
  }

  void normalizer_field(const WireField& field) {
    if (field.number == 2) {
      read(field, "normalizer_spec.precompiled_charsmap", model_.charsmap);
    } else if (field.number == 3) {
      read(field, "normalizer_spec.add_dummy_prefix", model_.add_dummy_prefix);
    } else if (field.number == 4) {
      read(field, "normalizer_spec.remove_extra_whitespaces", model_.remove_extra_whitespaces);
    } else if (field.number == 5) {
      read(field, "normalizer_spec.escape_whitespaces", model_.escape_whitespaces);
    }
  }

  // What holds for all pieces together.
  void check_pieces() {
    std::unordered_set<std::string_view> seen;
    seen.reserve(model_.pieces.size());
    std::size_t byte_pieces = 0;
    for (std::size_t id = 0; id < model_.pieces.size(); ++id) {
      const SentencePieceEntry& piece = model_.pieces[id];
      const std::string name = "pieces[" + std::to_string(id) + "]";
      if (!seen.insert(piece.text).second) {
        throw error("E-TOK-PIECE", name, "\"" + escape_untrusted(piece.text) + "\" again",
                    "every piece once");
      }
      if (piece.type == PieceType::kUnknown) {
        if (model_.unknown_id >= 0) {
          throw error("E-TOK-PIECE", name, "a second unknown piece", "one");
        }
        model_.unknown_id = static_cast<std::int32_t>(id);
      }
      if (piece.type == PieceType::kByte) {
        ++byte_pieces;
        if (!model_.byte_fallback) {
          throw error("E-TOK-PIECE", name, "a byte piece without byte_fallback", "none");
        }
        if (!fallback_byte(piece.text)) {
          throw error("E-TOK-PIECE", name, "\"" + escape_untrusted(piece.text) + "\"",
                      "<0x00> to <0xFF>");
        }
      }
    }
    if (model_.unknown_id < 0) throw error("E-TOK-PIECE", "pieces", "no unknown piece", "one");
    // No piece is there twice, so 256 byte pieces are all bytes.
    if (model_.byte_fallback && byte_pieces != 256) {
      throw error("E-TOK-PIECE", "pieces", fmt::format("{} byte pieces", byte_pieces), "256");
    }
  }

  std::string_view file_;
  SentencePieceModel model_;
};

// Lines of "base64 rank", the form of tiktoken vocabularies.
bool looks_like_tiktoken(std::string_view bytes) {
  const std::string_view line = bytes.substr(0, bytes.find('\n'));
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 >= line.size()) return false;
  for (const char c : line.substr(0, space)) {
    const bool base64 = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                        (c >= '0' && c <= '9') || c == '+' || c == '/' || c == '=';
    if (!base64) return false;
  }
  std::string_view rank = line.substr(space + 1);
  if (rank.ends_with('\r')) rank.remove_suffix(1);
  return !rank.empty() && rank.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

SentencePieceModel check_sentencepiece(std::string_view bytes, std::string_view file) {
  const auto refuse = [&](std::string_view code, std::string_view found) {
    return Error(ErrorRole::kModel, code, "model")
        .file(file)
        .found(found)
        .expected("a SentencePiece model");
  };
  if (bytes.size() > kMaxSentencePieceBytes) {
    throw refuse("E-TOK-LIMIT", fmt::format("{} bytes", bytes.size()));
  }
  if (looks_like_tiktoken(bytes)) {
    throw refuse("E-TOK-TIKTOKEN", "a tiktoken vocabulary (base64 text)")
        .hint("use the model's tokenizer.json instead; LLaMA 3 keeps this file in original/");
  }
  return Checker(file).run(bytes);
}

}  // namespace triphase
