#include "kernels/sizing/sample_workspace.h"

#include "kernels/sizing/regions.h"

namespace triphase {

SampleLayout sample_layout(std::int64_t vocab) {
  Regions all(64);
  return {.logits_at = all.take(4 * vocab),
          .weights_at = all.take(8 * vocab),
          .candidates_at = all.take(16 * vocab),
          .bytes = all.bytes()};
}

std::uint64_t sample_workspace_bytes(const ComputeMachine& machine, std::int64_t vocab) {
  if (machine.gpu) return 0;
  return static_cast<std::uint64_t>(machine.threads * sample_layout(vocab).bytes);
}

}  // namespace triphase
