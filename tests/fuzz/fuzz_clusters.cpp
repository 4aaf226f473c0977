// What the key clusters of a fixed context say of themselves: what is accepted must survive writing
// and reading again.

#include "runtime/context/context_facts.h"
#include "tests/fuzz/fuzz_support.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace triphase;
  const auto written = [](const ContextFacts& facts) {
    return context_facts_json(facts.context, facts.tokens, facts.data_bytes, facts.data_hash);
  };
  if (const auto facts = accepted(ErrorRole::kInput, [&] {
        return parse_context_facts(as_text(data, size), "clusters.json");
      })) {
    const std::string text = written(*facts);
    require(written(parse_context_facts(text, "again")) == text);
  }
  return 0;
}
