// What the key clusters of a fixed context say of themselves: what is accepted must survive writing
// and reading again.

#include "runtime/context/context_facts.h"
#include "tests/fuzz/fuzz_support.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using triphase::require;
  triphase::accept_or_refuse(triphase::ErrorRole::kInput, [&] {
    const auto written = [](const triphase::ContextFacts& facts) {
      return triphase::context_facts_json(facts.context, facts.tokens, facts.data_bytes,
                                          facts.data_hash);
    };
    const std::string text =
        written(triphase::parse_context_facts(triphase::as_text(data, size), "clusters.json"));
    require(written(triphase::parse_context_facts(text, "again")) == text);
  });
  return 0;
}
