#pragma once

// The BPE model of a Hugging Face tokenizer file: one piece of text to token ids. Filled by a
// loader, then immutable and thread-safe.

#include <array>
#include <string_view>
#include <vector>

#include "models/tokenizer/bpe.h"
#include "models/tokenizer/vocabulary.h"

namespace triphase {

class BpeModel {
 public:
  struct Options {
    TokenId unknown = kNoToken;
    bool fuse_unknown = false;   // a run of unknown characters is one token
    bool byte_fallback = false;  // an unknown character becomes its <0xHH> tokens, if all exist
    bool ignore_merges = false;  // a piece that is a token is that token (LLaMA 3)
  };

  BpeModel(Vocabulary vocabulary, MergeTable merges, const Options& options);

  // Appends the ids of `piece` to `out`. `merger` is working memory for merges().
  void encode(std::string_view piece, BpeMerger& merger, std::vector<TokenId>& out) const;

  [[nodiscard]] const Vocabulary& vocabulary() const { return vocabulary_; }
  [[nodiscard]] const MergeTable& merges() const { return merges_; }

 private:
  static constexpr std::size_t kTableEnd = 0x3000;  // characters looked up without hashing

  [[nodiscard]] TokenId character_token(std::string_view character) const;
  void append_unknown(std::string_view character, bool& pending, std::vector<TokenId>& out) const;
  void merge_words(std::size_t begin, BpeMerger& merger, std::vector<TokenId>& out) const;

  Vocabulary vocabulary_;
  MergeTable merges_;
  Options options_;
  std::vector<TokenId> characters_;          // by code point below kTableEnd
  std::array<TokenId, 256> fallback_bytes_;  // <0xHH> tokens
  TokenId metaspace_ = kNoToken;             // the token of U+2581, where words can be cut at it
};

// True when no token has U+2581 after another character: then no merge ever crosses the start of a
// word, and words can be merged one by one.
[[nodiscard]] bool words_are_separable(const Vocabulary& vocabulary);

}  // namespace triphase
