#pragma once

// The thin layer that kernels are written in, so that one source compiles with nvcc for a GPU and
// with the host compiler for the fiber emulator of tests/emulated (no CUDA installation needed).
//
// Kernels use CUDA's own words where both sides can offer them: __global__, __device__,
// __launch_bounds__, threadIdx, blockIdx, blockDim, gridDim, __syncthreads(), uint4, float2,
// float4. Everything else comes from here, in namespace triphase::cuda:
//
//   TRIPHASE_LAUNCH((kernel<A, B>), grid, block, shared_bytes, stream, arguments...);
//   TRIPHASE_SHARED(float, sums, 32);           a shared array of fixed size
//   TRIPHASE_DYNAMIC_SHARED(bytes);             unsigned char* to the launch's shared bytes
//   TRIPHASE_UNROLL                             in front of a loop of constant length
//   TRIPHASE_NO_UNROLL                          in front of a loop that must stay one
//   shuffle, shuffle_xor, shuffle_down, ballot, match_any, sync_warp
//       all 32 lanes take part, always; warp-divergent use is an error that the emulator reports
//   sync_block_or, sync_block_count             a barrier that also combines a predicate
//   atomic_add, atomic_min, atomic_max, atomic_or, atomic_cas
//   copy_async16, copy_async4, copy_async_commit, copy_async_wait<N>
//       global to shared without registers; an invalid copy writes zeros and reads nothing
//   load16, load8, load4, store16, store8, store4   aligned vector access (asserted)
//   Half, BFloat16, to_float, from_float<T>, pack2, unpack2
//   float_bits, bits_float, byte_permute, exp2_fast, round_even, and mul_rn, add_rn, sub_rn,
//   div_rn,
//       fma_rn, which no compiler option contracts or approximates
//   device_check(condition)                     a broken invariant: reported by the emulator
//
// Block sizes are multiples of 32. A thread must not leave a kernel before a barrier that others
// still wait at. Rules for sm_70: cp.async falls back to plain copies below sm_80.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

inline constexpr int kWarpSize = 32;

}  // namespace triphase::cuda

#ifdef __CUDACC__
#include "kernels/cuda/dialect_nvcc.h"
#else
#include TRIPHASE_DIALECT_HEADER
#endif

namespace triphase::cuda {

template <class T>
__host__ __device__ constexpr T smaller(T a, T b) {
  return b < a ? b : a;
}
template <class T>
__host__ __device__ constexpr T larger(T a, T b) {
  return a < b ? b : a;
}
template <class T>
__host__ __device__ constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

// Sums and maxima over all lanes (or over aligned groups of `width` lanes), the same in every lane;
// a fixed tree, so the same bits every time.
template <class T>
__device__ inline T warp_sum(T value, int width = kWarpSize) {
  for (int step = width / 2; step > 0; step /= 2) value += shuffle_xor(value, step);
  return value;
}
template <class T>
__device__ inline T warp_max(T value, int width = kWarpSize) {
  for (int step = width / 2; step > 0; step /= 2) value = larger(value, shuffle_xor(value, step));
  return value;
}
template <class T>
__device__ inline T warp_min(T value, int width = kWarpSize) {
  for (int step = width / 2; step > 0; step /= 2) value = smaller(value, shuffle_xor(value, step));
  return value;
}

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x) % kWarpSize; }
__device__ inline int warp_id() { return static_cast<int>(threadIdx.x) / kWarpSize; }
// The same number, from lane 0, so that the compiler knows that it is one for the whole warp. A
// warp's own loop bounds and branches must come from this, from ballots or from block indices: a
// shuffle under a condition that might divide the warp is compiled to a call, which costs registers
// and time (tools/check_kernel_budget.py names such kernels).
__device__ inline int uniform_warp_id() { return shuffle(warp_id(), 0); }

}  // namespace triphase::cuda
