#pragma once

// 16-bit operands of tensor-core products that lose nothing. Included by kernels only.

#include "kernels/cuda/dialect.h"

namespace triphase::cuda {

// The leading terms in T of two values, in one word; the values become what these leave.
template <class T>
__device__ __forceinline__ unsigned take_term(float& first, float& second) {
  const unsigned word = pack2<T>(first, second);
  const float2 taken = unpack2<T>(word);
  first -= taken.x;
  second -= taken.y;
  return word;
}

// INT8 codes as FP16: a code's bits are a subnormal number, kCodeUnit times the code, which tensor
// cores take as it is.
inline constexpr float kCodeUnit = 1.0F / 16777216.0F;  // 2^-24
// Which two of a word's four codes.
inline constexpr unsigned kLowCodes = 0x4140U;
inline constexpr unsigned kHighCodes = 0x4342U;
inline constexpr unsigned kEvenCodes = 0x4240U;
inline constexpr unsigned kOddCodes = 0x4341U;
__device__ __forceinline__ unsigned half_codes(unsigned word, unsigned which) {
  return byte_permute(word, 0U, which);
}

}  // namespace triphase::cuda
