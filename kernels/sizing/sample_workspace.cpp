#include "kernels/sizing/sample_workspace.h"

namespace triphase {

SampleLayout sample_layout(std::int64_t vocab) {
  constexpr std::int64_t kAlignment = 64;
  SampleLayout layout;
  const auto take = [&](std::int64_t element_bytes) {
    const std::int64_t at = layout.bytes;
    layout.bytes += (vocab * element_bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  };
  layout.logits_at = take(4);
  layout.weights_at = take(8);
  layout.candidates_at = take(16);
  return layout;
}

std::uint64_t sample_workspace_bytes(const ComputeMachine& machine, std::int64_t vocab) {
  if (machine.gpu) return 0;
  return static_cast<std::uint64_t>(machine.threads * sample_layout(vocab).bytes);
}

}  // namespace triphase
