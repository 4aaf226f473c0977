#pragma once

// Softmax weights of attended tokens, summed over the query heads of a list. Included by kernels
// only.

#include <cstdint>

#include "kernels/cuda/dialect.h"
#include "kernels/cuda/listed_scores.h"

namespace triphase::cuda {

// The weight of a list's token under heads slice, slice + slices, ..., summed in this order.
__device__ __forceinline__ float weight_of(const ListedScores& scores, std::int64_t list,
                                           std::int64_t token, int slice, int slices) {
  constexpr int kTogether = 8;  // heads whose loads are under way at once
  const float* values = scores.values + list * scores.heads * scores.capacity + token;
  const float* softmax = scores.softmax + 2 * list * scores.heads;
  float sum = 0.0F;
  TRIPHASE_NO_UNROLL
  for (int first = slice; first < scores.heads; first += kTogether * slices) {
    float value[kTogether];
    uint2 of_head[kTogether];
    TRIPHASE_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      const int head = first + i * slices;
      const bool counts = head < scores.heads;
      value[i] = counts ? values[head * scores.capacity] : 0.0F;
      of_head[i] = counts ? load8(softmax + 2 * head) : make_uint2(0, 0);
    }
    TRIPHASE_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      const float weight = exp2_fast(value[i] - bits_float(of_head[i].x));
      sum = fma_rn(weight, bits_float(of_head[i].y), sum);
    }
  }
  return sum;
}

}  // namespace triphase::cuda
