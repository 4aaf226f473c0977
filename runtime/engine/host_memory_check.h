#pragma once

// Whether the machine, and the budget for its host memory, have room for a plan.

#include <cstdint>
#include <optional>

#include "runtime/engine/loaded_model.h"

namespace triphase {

// `budget`: bytes of --host-memory where it was given. Throws E-MEM-FIT (exit code 5).
void check_host_memory(const RunPlan& plan, bool on_gpu, std::optional<std::uint64_t> budget);

}  // namespace triphase
