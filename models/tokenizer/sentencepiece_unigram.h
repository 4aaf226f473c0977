#pragma once

// Unigram segmentation (the best-scored path through all pieces) with the same ids as
// libsentencepiece, in linear time on any text. Immutable after construction and thread-safe.

#include <optional>
#include <string_view>
#include <vector>

#include "models/tokenizer/added_tokens.h"
#include "models/tokenizer/sentencepiece_check.h"
#include "models/tokenizer/sentencepiece_text.h"

namespace triphase {

class SentencePieceUnigram {
 public:
  // Nothing when the model has pieces so long that text could take long (libsentencepiece has it
  // then). For models of kind unigram.
  static std::optional<SentencePieceUnigram> make(const SentencePieceModel& model);

  // Appends the ids of `text`; `dummy_prefix` overrides the model's own setting.
  void encode(std::string_view text, bool dummy_prefix, std::vector<TokenId>& out) const;

 private:
  explicit SentencePieceUnigram(const SentencePieceModel& model);

  SentencePieceText text_;
  TokenTrie pieces_;  // value: id
  struct Score {
    float score;
    bool user_defined;
  };
  std::vector<Score> scores_;  // by id
  float max_score_;
  float unknown_score_;
};

}  // namespace triphase
