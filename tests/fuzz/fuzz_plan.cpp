// A plan from a user: what is accepted must survive writing and reading again.

#include "runtime/plan/plan_file.h"
#include "tests/fuzz/fuzz_support.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace triphase;
  if (const auto plan = accepted(ErrorRole::kInput,
                                 [&] { return parse_plan(as_text(data, size), "plan.json"); })) {
    require(parse_plan(plan_to_json(*plan), "again") == *plan);
  }
  return 0;
}
