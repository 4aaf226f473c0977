// Arbitrary bytes as tokenizer.model. What our check lets through must load, encode, decode and
// stream, in our own engines and in libsentencepiece.

#include "models/tokenizer/sentencepiece_tokenizer.h"
#include "tests/fuzz/fuzz_tokenizer_support.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace triphase;
  ModelConfig config;
  config.vocab_size = 100'000;
  Notes notes;
  const auto tokenizer = accepted(ErrorRole::kModel, [&] {
    return tokenizer_from_sentencepiece(std::string(as_text(data, size)), "tokenizer.model", {},
                                        config, notes);
  });
  if (!tokenizer) return 0;
  for (const std::string_view text :
       {std::string_view("  Hello <s>wor\xC3\xA9ld \xEF\xBC\xA1 \xF0\x9F\x98\x80</s> ab"),
        std::string_view("a\0b", 3), std::string_view("   ")}) {
    encode_and_stream(**tokenizer, text);
  }
  return 0;
}
