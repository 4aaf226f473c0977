#pragma once

// A tokenizer for tests: one token per byte, ids 0..255, so that any text has known ids and tokens
// can split UTF-8 characters. Id 256 is the special end-of-sequence token.

#include <memory>
#include <string>

#include "base/utf8.h"
#include "models/tokenizer/text_decoder.h"
#include "models/tokenizer/tokenizer.h"

namespace triphase {

class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr TokenId kEos = 256;

  [[nodiscard]] std::vector<TokenId> encode(std::string_view text,
                                            const EncodeOptions&) const override {
    std::vector<TokenId> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  [[nodiscard]] std::unique_ptr<TextDecoder> new_decoder(bool skip_special) const override {
    return std::make_unique<Decoder>(*this, skip_special);
  }
  [[nodiscard]] std::string token_bytes(TokenId id) const override {
    return id == kEos ? "<eos>" : std::string(1, static_cast<char>(id));
  }
  [[nodiscard]] bool is_special(TokenId id) const override { return id == kEos; }
  [[nodiscard]] std::int64_t vocab_size() const override { return 257; }
  [[nodiscard]] std::optional<TokenId> bos() const override { return std::nullopt; }
  [[nodiscard]] std::string_view kind() const override { return "bytes"; }

 private:
  class Decoder final : public TextDecoder {
   public:
    Decoder(const ByteTokenizer& tokenizer, bool skip_special)
        : tokenizer_(&tokenizer), skip_special_(skip_special) {}
    void push(TokenId id, std::string& out) override {
      if (id != kEos || !skip_special_) pending_ += tokenizer_->token_bytes(id);
      drain_utf8(pending_, out);
    }
    void finish(std::string& out) override { out += replace_invalid_utf8(pending_); }

   private:
    const ByteTokenizer* tokenizer_;
    bool skip_special_;
    std::string pending_;
  };
};

}  // namespace triphase
