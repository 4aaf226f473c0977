// A hardware profile from a user: what is accepted must survive writing and reading again, and its
// tables can be looked up.

#include "runtime/plan/profile_file.h"
#include "scheduler/cost/step_cost.h"
#include "tests/fuzz/fuzz_support.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace triphase;
  if (const auto profile = accepted(
          ErrorRole::kInput, [&] { return parse_profile(as_text(data, size), "profile.json"); })) {
    require(parse_profile(profile_to_json(*profile), "again") == *profile);
    const CostModel model(*profile);
    require(model.step({.decode_rows = 3, .attended_tokens = 500.0}, {}).step >= 0.0);
  }
  return 0;
}
