#pragma once

// Importance that builds up over steps: H2O's accumulators, updated from one decode step's logits.
// O(k) per step. All pointers are device memory.

#include <cstdint>

#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

// One step's attention over the chosen tokens of each row (sequence x KV head).
struct StepLogits {
  const float* logits = nullptr;    // [row][g][capacity], natural units (after the softmax scale)
  const float* log_sums = nullptr;  // [row][g]: log sum exp over the chosen tokens
  std::int64_t capacity = 0;
  std::int64_t rows = 0;
  std::int64_t group = 1;
};

// H2O: accumulators[row][indices[row][i]] += mean over the group of the token's weight. indices
// [row][capacity], counts [row].
void update_h2o(const StepLogits& step, const std::int32_t* indices, const std::int32_t* counts,
                float* accumulators, std::int64_t accumulator_stride, StreamHandle stream);

}  // namespace triphase::cuda
