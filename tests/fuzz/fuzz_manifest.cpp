// OUT.manifest.json of an earlier run: what is accepted must survive writing and reading again.

#include "runtime/job/manifest.h"
#include "tests/fuzz/fuzz_support.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace triphase;
  if (const auto manifest = accepted(ErrorRole::kInput, [&] {
        return parse_manifest(as_text(data, size), "out.jsonl.manifest.json");
      })) {
    const Manifest again = parse_manifest(manifest_to_json(*manifest), "again");
    require(manifest_differences(*manifest, again).empty());
    require(manifest_to_json(*manifest) == manifest_to_json(again));
  }
  return 0;
}
