#include <algorithm>

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

std::unique_ptr<TextDecoder> make_stream_decoder(const Tokenizer& tokenizer,
                                                 std::span<const TokenId> before) {
  // What follows depends on a character that `before` may end in, and on whether text came before:
  // the end of a long prompt tells both, unless it is special tokens or one run of bytes alone.
  std::string text;
  std::unique_ptr<TextDecoder> decoder;
  for (const std::size_t tail : {std::min(kTailTokens, before.size()), before.size()}) {
    decoder = tokenizer.new_decoder(/*skip_special=*/true);
    for (const TokenId id : before.last(tail)) decoder->push(id, text);
    if (!text.empty()) break;
  }
  decoder->begin_text(text);
  return decoder;
}

}  // namespace triphase
