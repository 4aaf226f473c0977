#include "runtime/engine/host_memory_check.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/format_bytes.h"
#include "runtime/machine.h"

namespace triphase {

void check_host_memory(const RunPlan& plan, bool on_gpu, std::optional<std::uint64_t> budget) {
  const MemoryPlan& memory = plan.memory;
  const std::uint64_t on_host =
      memory.host_weights + memory.host_kv + memory.host_inputs + plan.host_scratch;
  // KV takes what the budget leaves; streamed weights and scratch have no other place.
  if (budget && on_host > *budget) {
    throw Error(ErrorRole::kResources, "E-MEM-FIT", "--host-memory")
        .found(fmt::format("{}, and streamed weights take {} there, scratch {}",
                           format_bytes(*budget), format_bytes(memory.host_weights),
                           format_bytes(plan.host_scratch)))
        .expected(fmt::format("at least {}", format_bytes(on_host)))
        .hint("raise it, or --device-memory");
  }
  // Given budgets may exceed the machine's memory. The system takes pages when they are touched, so
  // it would end the job in the middle.
  const std::uint64_t needed = on_host + (on_gpu ? 0 : memory.total());
  const std::uint64_t free = usable_host_memory();
  if (needed <= free) return;
  const bool host = on_gpu || on_host > memory.total();
  throw Error(ErrorRole::kResources, "E-MEM-FIT", host ? "--host-memory" : "--device-memory")
      .found(fmt::format("a plan of {}", format_bytes(needed)))
      .expected(
          fmt::format("at most {}, which this machine or container has left", format_bytes(free)))
      .hint("lower it, --batch-size or --max-context");
}

}  // namespace triphase
