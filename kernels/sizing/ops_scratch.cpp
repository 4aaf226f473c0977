#include "kernels/sizing/ops_scratch.h"

#include "kernels/sizing/cuda_workspace.h"

namespace triphase {

std::uint64_t ops_reserved_bytes(const ComputeMachine& machine, const OpsShape& shape) {
  if (!machine.gpu) return 0;
  return static_cast<std::uint64_t>(cuda_scratch_bytes(*machine.gpu, shape).device());
}

}  // namespace triphase
