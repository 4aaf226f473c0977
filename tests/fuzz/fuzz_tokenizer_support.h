#pragma once

// What every fuzz target of a tokenizer demands of one that loads.

#include "models/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz_support.h"

namespace triphase {

// The text is refused, or its ids lie within the vocabulary and stream as they decode.
inline void encode_and_stream(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<TokenId> ids;
  try {
    ids = tokenizer.encode(text, {});
  } catch (const Error& error) {
    // A pattern takes too long on the text, or the vocabulary lacks what it needs.
    require(error.role() == ErrorRole::kInput || error.role() == ErrorRole::kModel);
    return;
  }
  const std::unique_ptr<TextDecoder> stream = make_stream_decoder(tokenizer);
  std::string streamed;
  for (const TokenId id : ids) {
    require(id >= 0 && id < tokenizer.vocab_size());
    stream->push(id, streamed);
    static_cast<void>(tokenizer.token_bytes(id));
  }
  stream->finish(streamed);
  require(streamed == tokenizer.decode(ids, true));
}

}  // namespace triphase
