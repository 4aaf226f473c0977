#include <algorithm>

#include "models/tokenizer/text_decoder.h"
#include "models/tokenizer/tokenizer.h"

namespace triphase {
namespace {

constexpr std::size_t kTailTokens = 64;

}  // namespace

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  const std::unique_ptr<TextDecoder> decoder = new_decoder(skip_special);
  std::string text;
  for (const TokenId id : ids) decoder->push(id, text);
  decoder->finish(text);
  return text;
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, std::span<const TokenId> before) {
  // What follows depends on a character that `before` may end in, and on whether text came before:
  // the end of a long prompt tells both, unless it is special tokens or one run of bytes alone.
  std::string text;
  for (const std::size_t tail : {std::min(kTailTokens, before.size()), before.size()}) {
    decoder_ = tokenizer.new_decoder(/*skip_special=*/true);
    for (const TokenId id : before.last(tail)) decoder_->push(id, text);
    if (!text.empty()) break;
  }
  decoder_->begin_text(text);
}
StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::push(TokenId id) {
  std::string text;
  decoder_->push(id, text);
  return text;
}

std::string_view StreamDecoder::held() const { return decoder_->held(); }

std::string StreamDecoder::finish() {
  std::string text;
  decoder_->finish(text);
  return text;
}

}  // namespace triphase
