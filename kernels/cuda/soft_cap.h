#pragma once

// The soft cap of attention's scores and of logits (ScoreScale::cap). Included by kernels only.

#include <cmath>

#include "kernels/cuda/dialect.h"

namespace triphase::cuda {

// cap * tanh(x / cap).
__device__ __forceinline__ float soft_capped(float x, float cap, float inverse_cap) {
  return cap * tanhf(x * inverse_cap);
}

}  // namespace triphase::cuda
