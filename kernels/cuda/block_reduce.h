#pragma once

// Sums and scans over a block, in orders fixed by the thread index, so that results have the same
// bits every time. Included by kernels only. `scratch` is shared memory of kBlockReduceWords words;
// every thread of the block takes part. Each call ends with a barrier, so scratch can be used again
// at once.

#include "kernels/cuda/dialect.h"

namespace triphase::cuda {

inline constexpr int kBlockReduceWords = 34;

template <class T, class Combine>
__device__ inline T block_reduce(T value, T* scratch, T neutral, const Combine& combine) {
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  for (int step = kWarpSize / 2; step > 0; step /= 2) {
    value = combine(value, shuffle_xor(value, step));
  }
  if (lane_id() == 0) scratch[warp_id()] = value;
  __syncthreads();
  T total = neutral;
  for (int warp = 0; warp < warps; ++warp) total = combine(total, scratch[warp]);
  __syncthreads();
  return total;
}

__device__ inline float block_sum(float value, float* scratch) {
  return block_reduce(value, scratch, 0.0F, [](float a, float b) { return a + b; });
}

__device__ inline float block_max(float value, float* scratch) {
  return block_reduce(value, scratch, -INFINITY, [](float a, float b) { return larger(a, b); });
}

// Likewise of several values at once, with two barriers for all. A block of kWarps warps; `scratch`
// has kCount * kWarps words.
template <int kWarps, int kCount, class T, class Combine>
__device__ __forceinline__ void block_reduce_each(T (&value)[kCount], T* scratch, T neutral,
                                                  const Combine& combine) {
  TRIPHASE_UNROLL
  for (int i = 0; i < kCount; ++i) {
    TRIPHASE_UNROLL
    for (int step = kWarpSize / 2; step > 0; step /= 2) {
      value[i] = combine(value[i], shuffle_xor(value[i], step));
    }
    if (lane_id() == 0) scratch[i * kWarps + warp_id()] = value[i];
  }
  __syncthreads();
  TRIPHASE_UNROLL
  for (int i = 0; i < kCount; ++i) {
    value[i] = neutral;
    TRIPHASE_UNROLL
    for (int warp = 0; warp < kWarps; ++warp)
      value[i] = combine(value[i], scratch[i * kWarps + warp]);
  }
  __syncthreads();
}

// Sum of the values of this lane and the lanes before it.
template <class T>
__device__ inline T warp_scan(T value) {
  for (int step = 1; step < kWarpSize; step *= 2) {
    const T before = shuffle(value, larger(0, lane_id() - step));
    if (lane_id() >= step) value += before;
  }
  return value;
}

// Sum of the values of all threads before this one, of an unsigned type; `total` is the sum over
// the block.
template <class T>
__device__ inline T block_scan(T value, T* scratch, T& total) {
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  const T inclusive = warp_scan(value);
  if (lane_id() == kWarpSize - 1) scratch[warp_id()] = inclusive;
  __syncthreads();
  T base = 0;
  total = 0;
  for (int warp = 0; warp < warps; ++warp) {
    if (warp == warp_id()) base = total;
    total += scratch[warp];
  }
  __syncthreads();
  return base + inclusive - value;
}

}  // namespace triphase::cuda
