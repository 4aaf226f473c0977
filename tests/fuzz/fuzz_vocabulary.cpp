// vocab.json, and behind a NUL byte merges.txt; what loads must encode, decode and stream.

#include "models/tokenizer/tokenizer_json.h"
#include "tests/fuzz/fuzz_tokenizer_support.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace triphase;
  const std::vector<std::string_view> files = parts_of(as_text(data, size), 2);
  for (const char* family : {"gpt2", "qwen2", "opt"}) {
    ModelConfig config;
    config.vocab_size = 1000;
    config.model_type = family;
    Notes notes;
    const auto tokenizer = accepted(ErrorRole::kModel, [&] {
      return tokenizer_from_vocabulary(files[0], files[1], {}, config, notes);
    });
    if (tokenizer) encode_and_stream(**tokenizer, "Hello  w\xC3\xB6rld\n1234 's <|endoftext|>");
  }
  return 0;
}
