// A hardware profile from a user: what is accepted must survive writing and reading again, and its
// tables can be looked up.

#include "runtime/plan/profile_file.h"
#include "scheduler/cost/step_cost.h"
#include "tests/fuzz/fuzz_support.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using triphase::require;
  triphase::accept_or_refuse(triphase::ErrorRole::kInput, [&] {
    const triphase::HardwareProfile profile =
        triphase::parse_profile(triphase::as_text(data, size), "profile.json");
    require(triphase::parse_profile(triphase::profile_to_json(profile), "again") == profile);
    const triphase::CostModel model(profile);
    require(model.step({.decode_rows = 3, .attended_tokens = 500.0}, {}).step >= 0.0);
  });
  return 0;
}
