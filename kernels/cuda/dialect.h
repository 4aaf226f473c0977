#pragma once

// The thin layer that kernels are written in, so that one source compiles with nvcc for a GPU and
// with the host compiler for the fiber emulator of tests/emulated (no CUDA installation needed).
//
// Kernels use CUDA's own words where both sides can offer them: __global__, __device__,
// __launch_bounds__, threadIdx, blockIdx, blockDim, gridDim, __syncthreads(), uint4, float2,
// float4. Everything else comes from here, in namespace triphase::cuda:
//
//   TRIPHASE_LAUNCH((kernel<A, B>), grid, block, shared_bytes, stream, arguments...);
//       stream: a StreamHandle, or LaunchOn where the launch before it need not have ended
//   TRIPHASE_SHARED(float, sums, 32);           a shared array of fixed size
//   TRIPHASE_DYNAMIC_SHARED(bytes);             unsigned char* to the launch's shared bytes
//   TRIPHASE_UNROLL                             in front of a loop of constant length
//   TRIPHASE_UNROLL_BY(rounds)                  so many at a time, where registers are short
//   TRIPHASE_NO_UNROLL                          in front of a loop that must stay one
//   shuffle, shuffle_xor, ballot, sync_warp
//       all 32 lanes take part, always; warp-divergent use is an error that the emulator reports;
//       only sync_warp() makes what a lane wrote to memory visible to other lanes
//   atomic_add, atomic_or
//   copy_async16, copy_async8, copy_async_commit, copy_async_wait<N>
//       global to shared without registers; an invalid copy writes zeros and reads nothing
//   load_matrices, load_matrices_transposed    8 x 8 tiles of 16-bit values from shared memory
//   multiply_tiles<T>                          tensor cores: 16 x 8 += 16 x 16 times 16 x 8
//   multiply_codes<kSigned>                    likewise of bytes: 16 x 8 += 16 x 32 times 32 x 8
//   load16, load8, load4, store16, store8, store4   aligned vector access (asserted)
//   load_shared16, load_shared8, load_shared4   the same from shared memory, which may change
//   Half, BFloat16, to_float, from_float<T>, pack2, unpack2
//   float_bits, bits_float, byte_permute, exp2_fast, round_even, and mul_rn, add_rn, sub_rn,
//   div_rn,
//       fma_rn, which no compiler option contracts or approximates
//   round_to_int, round_to_unsigned             to the nearest, ties to even, within the type's
//   range device_check(condition)                     a broken invariant: reported by the emulator
//
// Block sizes are multiples of 32. A thread must not leave a kernel before a barrier that others
// still wait at. Rules for sm_70: cp.async falls back to plain copies below sm_80.

#include <cstddef>
#include <cstdint>
#include <numbers>

#include "base/launch.h"
#include "kernels/cuda/stream_handle.h"

#define TRIPHASE_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                       \
  ::triphase::cuda::detail::launch(::triphase::cuda::detail::unwrap kernel, #kernel, (grid),  \
                                   (block), static_cast<std::size_t>(shared_bytes), (stream), \
                                   __VA_ARGS__)

namespace triphase::cuda {

inline constexpr int kWarpSize = 32;
// Blocks along a grid's y, or its z.
inline constexpr std::int64_t kMostGridY = 65535;
// Softmaxes count in units of log2, for exp2_fast.
inline constexpr float kLog2E = std::numbers::log2e_v<float>;

}  // namespace triphase::cuda

#ifdef __CUDACC__
#include "kernels/cuda/dialect_nvcc.h"
#else
#include TRIPHASE_DIALECT_HEADER
#endif

namespace triphase::cuda {

struct LaunchOn {
  // NOLINTNEXTLINE(google-explicit-constructor): most launches are on a stream and no more
  LaunchOn(StreamHandle on, bool beside_last = false) : stream(on), beside(beside_last) {}

  StreamHandle stream;
  bool beside;  // Launch::beside
};

namespace detail {

// Lets a kernel with template arguments be written in parentheses.
template <class... Parameters>
constexpr auto unwrap(void (*kernel)(Parameters...)) {
  return kernel;
}

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const char* name, dim3 grid, dim3 block,
            std::size_t shared_bytes, LaunchOn on, Arguments&&... arguments) {
  const LaunchArguments<Parameters...> values(
      static_cast<Parameters>(std::forward<Arguments>(arguments))...);
  Launch launch;
  launch.kernel = reinterpret_cast<const void*>(kernel);
  launch.name = name;
  launch.grid = {grid.x, grid.y, grid.z};
  launch.block = {block.x, block.y, block.z};
  launch.shared_bytes = shared_bytes;
  launch.arguments = values.bytes();
  launch.offsets = values.offsets();
  launch.thread = thread_of<Parameters...>();
  launch.beside = on.beside;
  if (on.stream == nullptr) {
    run_at_once(launch);
  } else {
    on.stream->add(launch);
  }
}

}  // namespace detail

// Fragments of the tensor-core tiles, in the layout that PTX documents for mma.sync.m16n8k16 and
// ldmatrix. With row = lane / 4 and pair = 2 * (lane % 4), a lane holds
//   a[0..3]: A[row][pair, +1], A[row + 8][pair, +1], A[row][pair + 8, +9], A[row + 8][pair + 8, +9]
//   b[0..1]: B[pair, +1][row], B[pair + 8, +9][row]
//   c[0..3]: C[row][pair, +1], C[row + 8][pair, +1]
// where two 16-bit values share a word, the first in the low half. load_matrices reads four 8 x 8
// tiles whose rows of 16 bytes start at the addresses that lanes 8i .. 8i + 7 give for tile i; word
// i is tile[row][pair, +1], transposed: tile[pair, +1][row]. With bytes (m16n8k32) a word has four
// of them in place of two values: a[0] is A[row][4 * (lane % 4), +1, +2, +3], a[2] and b[1] lie 16
// further. These are what runs where the hardware has no such instruction (below sm_80, below
// sm_75) and, for the loads, in the emulator.
namespace portable {

__device__ inline void load_matrices(unsigned (&words)[4], const void* row) {
  const auto address = reinterpret_cast<std::uint64_t>(row);
  device_check(address % 16 == 0);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (int tile = 0; tile < 4; ++tile) {
    const auto* from =
        reinterpret_cast<const std::uint16_t*>(shuffle(address, tile * 8 + lane / 4));
    words[tile] = static_cast<unsigned>(from[lane % 4 * 2]) |
                  static_cast<unsigned>(from[lane % 4 * 2 + 1]) << 16;
  }
}

__device__ inline void load_matrices_transposed(unsigned (&words)[4], const void* row) {
  const auto address = reinterpret_cast<std::uint64_t>(row);
  device_check(address % 16 == 0);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (int tile = 0; tile < 4; ++tile) {
    const int first = tile * 8 + lane % 4 * 2;
    const auto* low = reinterpret_cast<const std::uint16_t*>(shuffle(address, first));
    const auto* high = reinterpret_cast<const std::uint16_t*>(shuffle(address, first + 1));
    words[tile] = static_cast<unsigned>(low[lane / 4]) | static_cast<unsigned>(high[lane / 4])
                                                             << 16;
  }
}

// Not inlined: kernels with many products would grow out of all proportion.
template <class T>
__device__ __noinline__ void multiply_tiles(float (&c)[4], const unsigned (&a)[4],
                                            const unsigned (&b)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (int part = 0; part < 4; ++part) {
    for (int half = 0; half < 2; ++half) {
      const float2 low = unpack2<T>(shuffle(a[2 * half], lane / 4 * 4 + part));
      const float2 high = unpack2<T>(shuffle(a[2 * half + 1], lane / 4 * 4 + part));
      for (int column = 0; column < 2; ++column) {
        const float2 other = unpack2<T>(shuffle(b[half], (lane % 4 * 2 + column) * 4 + part));
        c[column] = fma_rn(low.x, other.x, fma_rn(low.y, other.y, c[column]));
        c[2 + column] = fma_rn(high.x, other.x, fma_rn(high.y, other.y, c[2 + column]));
      }
    }
  }
}

// Four bytes as they count.
template <bool kSigned>
__device__ inline int byte_of(unsigned word, int at) {
  const auto byte = static_cast<int>(word >> 8 * at & 0xFFU);
  return kSigned && byte > 127 ? byte - 256 : byte;
}

template <bool kSigned>
__device__ __noinline__ void multiply_codes(int (&c)[4], const unsigned (&a)[4],
                                            const unsigned (&b)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (int part = 0; part < 4; ++part) {
    for (int half = 0; half < 2; ++half) {
      const unsigned low = shuffle(a[2 * half], lane / 4 * 4 + part);
      const unsigned high = shuffle(a[2 * half + 1], lane / 4 * 4 + part);
      for (int column = 0; column < 2; ++column) {
        const unsigned other = shuffle(b[half], (lane % 4 * 2 + column) * 4 + part);
        for (int at = 0; at < 4; ++at) {
          c[column] += byte_of<false>(low, at) * byte_of<kSigned>(other, at);
          c[2 + column] += byte_of<false>(high, at) * byte_of<kSigned>(other, at);
        }
      }
    }
  }
}

}  // namespace portable

__device__ __forceinline__ void load_matrices(unsigned (&words)[4], const void* row) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
  detail::load_matrices(words, row);
#else
  portable::load_matrices(words, row);
#endif
}
__device__ __forceinline__ void load_matrices_transposed(unsigned (&words)[4], const void* row) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
  detail::load_matrices_transposed(words, row);
#else
  portable::load_matrices_transposed(words, row);
#endif
}
// c += A B with F32 sums; T is Half or BFloat16.
template <class T>
__device__ __forceinline__ void multiply_tiles(float (&c)[4], const unsigned (&a)[4],
                                               const unsigned (&b)[2]) {
#if !defined(__CUDACC__) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800)
  detail::multiply_tiles<T>(c, a, b);
#else
  portable::multiply_tiles<T>(c, a, b);
#endif
}
// c += A B with unsigned bytes in A; those of B are signed or not.
template <bool kSigned>
__device__ __forceinline__ void multiply_codes(int (&c)[4], const unsigned (&a)[4],
                                               const unsigned (&b)[2]) {
#if !defined(__CUDACC__) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800)
  detail::multiply_codes<kSigned>(c, a, b);
#else
  portable::multiply_codes<kSigned>(c, a, b);
#endif
}

template <class T>
__host__ __device__ constexpr T smaller(T a, T b) {
  return b < a ? b : a;
}
template <class T>
__host__ __device__ constexpr T larger(T a, T b) {
  return a < b ? b : a;
}
// One instruction, where larger() takes two: NaN counts for nothing.
__device__ __forceinline__ float largest(float a, float b) { return fmaxf(a, b); }
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

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x) % kWarpSize; }
__device__ inline int warp_id() { return static_cast<int>(threadIdx.x) / kWarpSize; }
// The same number, from lane 0, so that the compiler knows that it is one for the whole warp. A
// warp's own loop bounds and branches must come from this, from ballots or from block indices: a
// shuffle under a condition that might divide the warp is compiled to a call, which costs registers
// and time (tools/check_kernel_budget.py names such kernels).
__device__ inline int uniform_warp_id() { return shuffle(warp_id(), 0); }

}  // namespace triphase::cuda
