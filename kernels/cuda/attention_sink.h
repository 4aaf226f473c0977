#pragma once

// A head's sink: one more logit of its softmax, without a value (ScoreScale::sinks). Included by
// kernels only.

#include <cstdint>

#include "kernels/cuda/dialect.h"

namespace triphase::cuda {

// A row's sum of weights, which are relative to 2^top, with the sink's. Null sinks, or a row that
// saw no token: as it was.
__device__ inline float with_sink(const float* sinks, std::int64_t head, float top, float sum) {
  if (sinks == nullptr || !(sum > 0.0F)) return sum;
  return sum + exp2_fast(sinks[head] * kLog2E - top);
}

}  // namespace triphase::cuda
