#pragma once

// Text to token ids and back, as the model's own Hugging Face tokenizer does it. Implementations
// are immutable after loading and safe to use from many threads; a decoder belongs to one sequence.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "models/config/model_config.h"

namespace triphase {

// Token ids to text, one at a time, for one sequence.
class TextDecoder {
 public:
  virtual ~TextDecoder() = default;
  // Appends to `out` the text that `id` settles: bytes that later tokens cannot change. A token
  // that ends inside a UTF-8 character holds back the character, and byte-fallback tokens wait for
  // the end of their run where the tokenizer's decoder judges runs as a whole.
  virtual void push(TokenId id, std::string& out) = 0;
  // Characters that finish() would append now, though ids to come may make them malformed.
  [[nodiscard]] virtual std::string_view held() const { return {}; }
  // Another text begins with the next id: appends the rest of this one, but for a character that
  // may go on there.
  virtual void begin_text(std::string& /*out*/) {}
  // Appends the rest. Nothing may be pushed after it.
  virtual void finish(std::string& out) = 0;
};

struct EncodeOptions {
  bool add_special = true;    // what the model puts around a prompt (BOS for LLaMA, OPT, Gemma)
  bool parse_special = true;  // special-token text in the prompt becomes the token (HF behaviour)
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // `text` must be valid UTF-8 (callers check). Cost is about linear in its length. Throws
  // ErrorRole::kInput E-TOK-REGEX when a pre-tokenizer pattern hits its match limit.
  [[nodiscard]] virtual std::vector<TokenId> encode(std::string_view text,
                                                    const EncodeOptions& options) const = 0;

  // Ids outside the vocabulary decode to nothing. The result may hold incomplete UTF-8 only as
  // U+FFFD, as Hugging Face's decode does. `skip_special` leaves special tokens out.
  [[nodiscard]] std::string decode(std::span<const TokenId> ids, bool skip_special) const;

  // The same one token at a time. The tokenizer must outlive the decoder.
  [[nodiscard]] virtual std::unique_ptr<TextDecoder> new_decoder(bool skip_special) const = 0;

  // The raw bytes one token stands for inside a running text (no clean-up at the start).
  [[nodiscard]] virtual std::string token_bytes(TokenId id) const = 0;
  [[nodiscard]] virtual bool is_special(TokenId id) const = 0;

  // One more than the largest id.
  [[nodiscard]] virtual std::int64_t vocab_size() const = 0;
  [[nodiscard]] virtual std::optional<TokenId> bos() const = 0;
  [[nodiscard]] virtual std::string_view kind() const = 0;  // "sentencepiece bpe", "byte-level bpe"
};

// Streams a sequence's text without its special tokens. All that it appends equals
// Tokenizer::decode of all ids; after `before`, what decoding both adds to the text of `before`
// alone, with a character that `before` only begins. The tokenizer must outlive it.
[[nodiscard]] std::unique_ptr<TextDecoder> make_stream_decoder(
    const Tokenizer& tokenizer, std::span<const TokenId> before = {});

// Finds and loads the tokenizer of a model directory: tokenizer.json, else tokenizer.model, else
// vocab.json + merges.txt; reads tokenizer_config.json, special_tokens_map.json, added_tokens.json
// beside it. Returns nullptr when the directory has none (then only prompts given as token ids
// work); throws ErrorRole::kModel with E-TOK-* codes for anything malformed or unsupported. Checks
// that ids fit `config.vocab_size`. Notes get what `inspect` should say.
[[nodiscard]] std::unique_ptr<Tokenizer> load_tokenizer(const std::string& model_directory,
                                                        const ModelConfig& config, Notes& notes);

}  // namespace triphase
