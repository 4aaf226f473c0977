#pragma once

// INT8 codes as values and back, one by one. Included by kernels only.

#include <cstdint>

#include "kernels/cuda/dialect.h"
#include "kernels/kv_scale.h"

namespace triphase::cuda {

template <class Code>
__device__ __forceinline__ float dequantized(Code code, KvScale scale) {
  return kv_lambda(scale.bits) * (static_cast<float>(code) - kv_zero(scale.bits));
}

// As kv_requantize on the CPU: 0 where the channel has no lambda.
__device__ __forceinline__ std::uint8_t requantized(float value, KvScale scale) {
  const float lambda = kv_lambda(scale.bits);
  if (mul_rn(lambda, 0.0F) != 0.0F) return 0;
  const float code = round_even(add_rn(div_rn(value, lambda), kv_zero(scale.bits)));
  return static_cast<std::uint8_t>(smaller(larger(code, 0.0F), 255.0F));
}

}  // namespace triphase::cuda
