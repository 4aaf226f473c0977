#pragma once

// What SentencePiece does around its models: normalization of the text before, and unknown
// characters after. Views into the model's bytes; immutable and thread-safe.

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/added_tokens.h"
#include "models/tokenizer/sentencepiece_charsmap.h"
#include "models/tokenizer/sentencepiece_check.h"

namespace triphase {

class SentencePieceText {
 public:
  // `model` must outlive it.
  explicit SentencePieceText(const SentencePieceModel& model);

  // `text` with the model's rules applied, white space escaped and a dummy prefix if asked for.
  [[nodiscard]] std::string normalized(std::string_view text, bool dummy_prefix) const;

  // Appends an unknown character: its bytes with byte fallback, else one unknown id per run of
  // them. `after_unknown` is the caller's memory of the run; known pieces reset it.
  void append_unknown(std::string_view character, bool& after_unknown,
                      std::vector<TokenId>& out) const;

  // User-defined pieces: found before anything else; value: id.
  [[nodiscard]] const TokenTrie& user_defined() const { return user_defined_; }

 private:
  // What the text at `position` becomes, and how many bytes it takes there.
  [[nodiscard]] std::string_view prefix(std::string_view text, std::size_t position,
                                        std::size_t& length) const;

  const SentencePieceModel* model_;
  std::optional<Charsmap> charsmap_;
  TokenTrie user_defined_;
  std::array<TokenId, 256> byte_ids_{};
};

}  // namespace triphase
