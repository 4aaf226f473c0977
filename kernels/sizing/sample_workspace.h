#pragma once

// Scratch of Ops::sample as a pure function of shapes. No state; thread safe.

#include <cstdint>

#include "kernels/sizing/compute_machine.h"

namespace triphase {

// One thread's scratch on the CPU: logits after the penalty, weights, and candidates with a weight
// and an id each. Byte offsets, multiples of 64.
struct SampleLayout {
  std::int64_t logits_at = 0;
  std::int64_t weights_at = 0;
  std::int64_t candidates_at = 0;
  std::int64_t bytes = 0;
};
[[nodiscard]] SampleLayout sample_layout(std::int64_t vocab);

// The workspace of a call whose rows draw from at most `vocab` ids; 0 on a GPU.
[[nodiscard]] std::uint64_t sample_workspace_bytes(const ComputeMachine& machine,
                                                   std::int64_t vocab);

}  // namespace triphase
