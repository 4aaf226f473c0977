#pragma once

// The dialect under nvcc; see dialect.h.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cassert>
#include <string>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/cuda_launch.h"
#include "kernels/cuda/launch_check.h"

#define TRIPHASE_SHARED(type, name, count) __shared__ type name[count]
#define TRIPHASE_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#define TRIPHASE_UNROLL _Pragma("unroll")
#define TRIPHASE_PRAGMA(text) _Pragma(#text)
#define TRIPHASE_UNROLL_BY(rounds) TRIPHASE_PRAGMA(unroll rounds)
#define TRIPHASE_NO_UNROLL _Pragma("unroll 1")

namespace triphase::cuda {

using Half = __half;
using BFloat16 = __nv_bfloat16;

namespace detail {

// A GPU starts the threads itself.
template <class... Parameters>
constexpr Launch::Thread thread_of() {
  return nullptr;
}

inline void run_at_once(const Launch& launch) { run_launch(launch, nullptr); }

}  // namespace detail

// After a launch: a bad configuration shows here, a fault inside the kernel at the next
// synchronization. `shape` makes the text of the shapes, only when it is needed.
template <class Shape>
void check_launched(const char* kernel, const Shape& shape) {
  check_launch(kernel, shape);
}

// Before every launch with dynamic shared memory that may be beyond 48 KiB together with the
// kernel's fixed arrays. `shape` as above.
template <class Kernel, class Shape>
void allow_shared_bytes(Kernel* kernel, std::size_t bytes, const char* name, const Shape& shape) {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  const auto* address = reinterpret_cast<const void*>(kernel);
  raise_shared_bytes(address, device, bytes, [&] {
    const cudaError_t status = cudaFuncSetAttribute(
        address, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (status == cudaSuccess) return;
    throw_cuda_error(status, name, std::to_string(bytes) + " bytes of shared memory, " + shape());
  });
}

__device__ __forceinline__ void device_check([[maybe_unused]] bool condition) {
#ifndef NDEBUG
  assert(condition);
#endif
}

inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;

template <class T>
__device__ __forceinline__ T shuffle(T value, int from_lane) {
  return __shfl_sync(kAllLanes, value, from_lane);
}
template <class T>
__device__ __forceinline__ T shuffle_xor(T value, int lane_mask) {
  return __shfl_xor_sync(kAllLanes, value, lane_mask);
}
__device__ __forceinline__ unsigned ballot(bool predicate) {
  return __ballot_sync(kAllLanes, predicate);
}
__device__ __forceinline__ void sync_warp() { __syncwarp(); }

template <class T>
__device__ __forceinline__ T atomic_add(T* at, T value) {
  return atomicAdd(at, value);
}
template <class T>
__device__ __forceinline__ T atomic_or(T* at, T value) {
  return atomicOr(at, value);
}

__device__ __forceinline__ int count_bits(unsigned value) { return __popc(value); }
__device__ __forceinline__ int first_bit(unsigned value) {
  return __ffs(static_cast<int>(value)) - 1;
}
__device__ __forceinline__ unsigned float_bits(float value) { return __float_as_uint(value); }
__device__ __forceinline__ float bits_float(unsigned bits) { return __uint_as_float(bits); }
__device__ __forceinline__ unsigned byte_permute(unsigned low, unsigned high, unsigned selector) {
  return __byte_perm(low, high, selector);
}
// As exact as exp2f, but results below 2^-126 are zeros: no instructions to scale them.
__device__ __forceinline__ float exp2_fast(float value) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
__device__ __forceinline__ float log2_fast(float value) { return log2f(value); }
__device__ __forceinline__ float round_even(float value) { return rintf(value); }
__device__ __forceinline__ int round_to_int(float value) { return __float2int_rn(value); }
__device__ __forceinline__ unsigned round_to_unsigned(float value) {
  return __float2uint_rn(value);
}
__device__ __forceinline__ float mul_rn(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float add_rn(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float sub_rn(float a, float b) { return __fsub_rn(a, b); }
__device__ __forceinline__ float div_rn(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ float fma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(Half value) { return __half2float(value); }
__device__ __forceinline__ float to_float(BFloat16 value) { return __bfloat162float(value); }
template <class T>
__device__ __forceinline__ T from_float(float value) {
  if constexpr (sizeof(T) == 4) {
    return value;
  } else if constexpr (std::is_same_v<T, Half>) {
    return __float2half_rn(value);
  } else {
    return __float2bfloat16_rn(value);
  }
}
// Two 16-bit values in one register, the first in the low half.
template <class T>
__device__ __forceinline__ float2 unpack2(unsigned bits) {
  if constexpr (std::is_same_v<T, Half>) {
    __half2 pair;
    memcpy(&pair, &bits, 4);
    return __half22float2(pair);
  } else {
    return make_float2(bits_float(bits << 16), bits_float(bits & 0xFFFF0000U));
  }
}
template <class T>
__device__ __forceinline__ unsigned pack2(float first, float second) {
  unsigned bits = 0;
  if constexpr (std::is_same_v<T, Half>) {
    const __half2 pair = __floats2half2_rn(first, second);
    memcpy(&bits, &pair, 4);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    memcpy(&bits, &pair, 4);
  }
  return bits;
}

__device__ __forceinline__ uint4 load16(const void* from) {
  return __ldg(static_cast<const uint4*>(from));
}
__device__ __forceinline__ uint2 load8(const void* from) {
  return __ldg(static_cast<const uint2*>(from));
}
__device__ __forceinline__ unsigned load4(const void* from) {
  return __ldg(static_cast<const unsigned*>(from));
}
__device__ __forceinline__ uint4 load_shared16(const void* from) {
  return *static_cast<const uint4*>(from);
}
__device__ __forceinline__ uint2 load_shared8(const void* from) {
  return *static_cast<const uint2*>(from);
}
__device__ __forceinline__ unsigned load_shared4(const void* from) {
  return *static_cast<const unsigned*>(from);
}
__device__ __forceinline__ void store16(void* to, uint4 value) { *static_cast<uint4*>(to) = value; }
__device__ __forceinline__ void store8(void* to, uint2 value) { *static_cast<uint2*>(to) = value; }
__device__ __forceinline__ void store4(void* to, unsigned value) {
  *static_cast<unsigned*>(to) = value;
}

// From global (or mapped host) to shared memory. 16-byte copies go past L1.
__device__ __forceinline__ void copy_async16(void* to_shared, const void* from, bool valid) {
#if __CUDA_ARCH__ >= 800
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(to_shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
#else
  *static_cast<uint4*>(to_shared) =
      valid ? *static_cast<const uint4*>(from) : make_uint4(0U, 0U, 0U, 0U);
#endif
}
__device__ __forceinline__ void copy_async8(void* to_shared, const void* from, bool valid) {
#if __CUDA_ARCH__ >= 800
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(to_shared));
  const int bytes = valid ? 8 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;\n" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
#else
  *static_cast<uint2*>(to_shared) = valid ? *static_cast<const uint2*>(from) : make_uint2(0U, 0U);
#endif
}
__device__ __forceinline__ void copy_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}
// Waits until at most the `kPending` youngest groups of this thread are still under way. What other
// lanes copied is visible only after sync_warp() or a barrier.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
#endif
}

namespace detail {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
__device__ __forceinline__ void load_matrices(unsigned (&words)[4], const void* row) {
  const auto from = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(unsigned (&words)[4], const void* row) {
  const auto from = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(from)
               : "memory");
}
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
template <class T>
__device__ __forceinline__ void multiply_tiles(float (&c)[4], const unsigned (&a)[4],
                                               const unsigned (&b)[2]) {
  if constexpr (std::is_same_v<T, Half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}
template <bool kSigned>
__device__ __forceinline__ void multiply_codes(int (&c)[4], const unsigned (&a)[4],
                                               const unsigned (&b)[2]) {
  if constexpr (kSigned) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}
#endif

}  // namespace detail

}  // namespace triphase::cuda
