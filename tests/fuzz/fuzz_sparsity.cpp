// OUT.sparsity.json of an earlier run: what is accepted must survive writing and reading again.

#include "runtime/calibrate/sparsity_choice.h"
#include "tests/fuzz/fuzz_support.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace triphase;
  if (const auto choice = accepted(ErrorRole::kInput, [&] {
        return parse_sparsity_choice(as_text(data, size), "out.jsonl.sparsity.json");
      })) {
    const std::string text = sparsity_choice_to_json(*choice);
    require(sparsity_choice_to_json(parse_sparsity_choice(text, "again")) == text);
    require(!describe(*choice).empty());
  }
  return 0;
}
