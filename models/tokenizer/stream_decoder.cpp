#include "models/tokenizer/text_decoder.h"
#include "models/tokenizer/tokenizer.h"

namespace triphase {

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  const std::unique_ptr<TextDecoder> decoder = new_decoder(skip_special);
  std::string text;
  for (const TokenId id : ids) decoder->push(id, text);
  decoder->finish(text);
  return text;
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer)
    : decoder_(tokenizer.new_decoder(/*skip_special=*/true)) {}
StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::push(TokenId id) {
  std::string text;
  decoder_->push(id, text);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text;
  decoder_->finish(text);
  return text;
}

}  // namespace triphase
