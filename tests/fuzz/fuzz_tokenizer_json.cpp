// libFuzzer: arbitrary bytes as tokenizer.json; what loads must encode, decode and stream.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/utf8.h"
#include "models/tokenizer/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace triphase;
  // The first bytes are the prompt, the rest the file.
  const std::size_t prompt_bytes = size < 16 ? 0 : data[0] % 16;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  std::string_view prompt = input.substr(0, prompt_bytes);
  ModelConfig config;
  config.vocab_size = 1000;
  Notes notes;
  try {
    const auto tokenizer =
        tokenizer_from_json(input.substr(prompt_bytes), "tokenizer.json", {}, config, notes);
    if (first_invalid_utf8(prompt) != std::string_view::npos) prompt = "Hello  <s>world\n1234 's";
    const std::vector<TokenId> ids = tokenizer->encode(prompt, {});
    StreamDecoder stream(*tokenizer);
    std::string streamed;
    for (const TokenId id : ids) {
      if (id < 0 || id >= tokenizer->vocab_size()) std::abort();
      streamed += stream.push(id);
      static_cast<void>(tokenizer->token_bytes(id));
    }
    streamed += stream.finish();
    if (streamed != tokenizer->decode(ids, true)) std::abort();
  } catch (const Error& error) {
    if (error.role() == ErrorRole::kInternal) std::abort();
  }
  return 0;
}
