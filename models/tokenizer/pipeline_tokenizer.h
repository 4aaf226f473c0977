#pragma once

// A Hugging Face tokenizer put together from its parts: added tokens, normalizers, pre-tokenizers,
// BPE model, post-processing, decoder. Immutable after construction and thread-safe.

#include <optional>
#include <string>
#include <vector>

#include "models/tokenizer/added_tokens.h"
#include "models/tokenizer/bpe_model.h"
#include "models/tokenizer/json_components.h"
#include "models/tokenizer/tokenizer.h"

namespace triphase {

struct PipelineParts {
  AddedTokens added;  // finish() not yet called
  Normalizers normalizers;
  PreTokenizers pre_tokenizers;
  BpeModel model;
  Surrounding surrounding;
  DecodeStages decoder;  // at least one
  std::optional<TokenId> bos;
};

class PipelineTokenizer final : public Tokenizer {
 public:
  explicit PipelineTokenizer(PipelineParts parts);

  [[nodiscard]] std::vector<TokenId> encode(std::string_view text,
                                            const EncodeOptions& options) const override;
  [[nodiscard]] std::unique_ptr<TextDecoder> new_decoder(bool skip_special) const override;
  [[nodiscard]] std::string token_bytes(TokenId id) const override;
  [[nodiscard]] bool is_special(TokenId id) const override;
  [[nodiscard]] std::int64_t vocab_size() const override { return vocab_size_; }
  [[nodiscard]] std::optional<TokenId> bos() const override { return parts_.bos; }
  [[nodiscard]] std::string_view kind() const override { return kind_; }

 private:
  class Decoder;
  struct Scratch;

  void encode_text(std::string_view text, bool at_origin, bool parse_special, Scratch& scratch,
                   std::vector<TokenId>& out) const;
  [[nodiscard]] std::string_view token_text(TokenId id) const;

  PipelineParts parts_;
  std::int64_t vocab_size_ = 0;
  std::string_view kind_;
};

}  // namespace triphase
