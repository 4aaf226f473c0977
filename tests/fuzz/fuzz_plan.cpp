// A plan from a user: what is accepted must survive writing and reading again.

#include "runtime/plan/plan_file.h"
#include "tests/fuzz/fuzz_support.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using triphase::require;
  triphase::accept_or_refuse(triphase::ErrorRole::kInput, [&] {
    const triphase::Plan plan = triphase::parse_plan(triphase::as_text(data, size), "plan.json");
    require(triphase::parse_plan(triphase::plan_to_json(plan), "again") == plan);
  });
  return 0;
}
