// OUT.manifest.json of an earlier run: what is accepted must survive writing and reading again.

#include "runtime/job/manifest.h"
#include "tests/fuzz/fuzz_support.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using triphase::require;
  triphase::accept_or_refuse(triphase::ErrorRole::kInput, [&] {
    const triphase::Manifest manifest =
        triphase::parse_manifest(triphase::as_text(data, size), "out.jsonl.manifest.json");
    const triphase::Manifest again =
        triphase::parse_manifest(triphase::manifest_to_json(manifest), "again");
    require(triphase::manifest_differences(manifest, again).empty());
  });
  return 0;
}
