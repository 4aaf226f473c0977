#pragma once

// Bytes on their way through a lane's registers. Included by kernels only.

#include "kernels/cuda/dialect.h"

namespace triphase::cuda {

// One piece of kBytes; 1 for head sizes that nothing larger divides.
template <int kBytes>
struct Piece;
template <>
struct Piece<16> {
  using Type = uint4;
  static __device__ __forceinline__ Type load(const void* from) { return load16(from); }
  static __device__ __forceinline__ void store(void* to, Type value) { store16(to, value); }
};
template <>
struct Piece<4> {
  using Type = unsigned;
  static __device__ __forceinline__ Type load(const void* from) { return load4(from); }
  static __device__ __forceinline__ void store(void* to, Type value) { store4(to, value); }
};
template <>
struct Piece<1> {
  using Type = unsigned char;
  static __device__ __forceinline__ Type load(const void* from) {
    return *static_cast<const unsigned char*>(from);
  }
  static __device__ __forceinline__ void store(void* to, Type value) {
    *static_cast<unsigned char*>(to) = value;
  }
};

}  // namespace triphase::cuda
