// Arbitrary bytes as tokenizer.json; what loads must encode, decode and stream.

#include "base/utf8.h"
#include "models/tokenizer/tokenizer_json.h"
#include "tests/fuzz/fuzz_tokenizer_support.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace triphase;
  // The first bytes are the prompt, the rest the file.
  const std::size_t prompt_bytes = size < 16 ? 0 : data[0] % 16;
  const std::string_view input = as_text(data, size);
  std::string_view prompt = input.substr(0, prompt_bytes);
  if (first_invalid_utf8(prompt) != std::string_view::npos) prompt = "Hello  <s>world\n1234 's";
  ModelConfig config;
  config.vocab_size = 1000;
  Notes notes;
  const auto tokenizer = accepted(ErrorRole::kModel, [&] {
    return tokenizer_from_json(input.substr(prompt_bytes), "tokenizer.json", {}, config, notes);
  });
  if (tokenizer) encode_and_stream(**tokenizer, prompt);
  return 0;
}
