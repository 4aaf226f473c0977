// tokenizer_config.json, special_tokens_map.json and added_tokens.json, between NUL bytes.

#include "models/tokenizer/sidecar.h"
#include "tests/fuzz/fuzz_support.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace triphase;
  const std::vector<std::string_view> files = parts_of(as_text(data, size), 3);
  scratch_file("tokenizer_config.json", files[0]);
  scratch_file("special_tokens_map.json", files[1].empty() ? "{}" : files[1]);
  scratch_file("added_tokens.json", files[2].empty() ? "{}" : files[2]);
  const DirectoryHandle directory(scratch_folder());
  if (const auto sidecar = accepted(ErrorRole::kModel, [&] { return read_sidecar(directory); })) {
    require(!sidecar->tokenizer_class.ends_with("Fast"));
    for (const AddedToken& token : sidecar->added) require(token.id >= 0);
    for (const std::string& text : sidecar->special) require(!text.empty());
  }
  return 0;
}
