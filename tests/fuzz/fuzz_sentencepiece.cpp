// libFuzzer: arbitrary bytes as tokenizer.model. What our check lets through must load, encode,
// decode and stream, in our own engines and in libsentencepiece.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "models/tokenizer/sentencepiece_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace triphase;
  ModelConfig config;
  config.vocab_size = 100'000;
  Notes notes;
  try {
    const auto tokenizer =
        tokenizer_from_sentencepiece(std::string(reinterpret_cast<const char*>(data), size),
                                     "tokenizer.model", {}, config, notes);
    for (const std::string_view text :
         {std::string_view("  Hello <s>wor\xC3\xA9ld \xEF\xBC\xA1 \xF0\x9F\x98\x80</s> ab"),
          std::string_view("a\0b", 3), std::string_view("   ")}) {
      const std::vector<TokenId> ids = tokenizer->encode(text, {});
      StreamDecoder stream(*tokenizer);
      std::string streamed;
      for (const TokenId id : ids) {
        if (id < 0 || id >= tokenizer->vocab_size()) std::abort();
        streamed += stream.push(id);
        static_cast<void>(tokenizer->token_bytes(id));
      }
      streamed += stream.finish();
      if (streamed != tokenizer->decode(ids, true)) std::abort();
    }
  } catch (const Error& error) {
    if (error.role() == ErrorRole::kInternal) std::abort();
  }
  return 0;
}
