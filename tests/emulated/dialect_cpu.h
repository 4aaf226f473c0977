#pragma once

// The dialect of kernels/cuda/dialect.h on the emulator.

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <tuple>
#include <type_traits>
#include <vector>

#include "base/dtype.h"
#include "base/launch.h"
#include "kernels/cuda/launch_check.h"
#include "tests/emulated/emulator.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define threadIdx (::triphase::emulated::thread_index())
#define blockIdx (::triphase::emulated::block_index())
#define blockDim (::triphase::emulated::block_size())
#define gridDim (::triphase::emulated::grid_size())
#define __syncthreads() (::triphase::emulated::sync_block(__FILE__, __LINE__))

#define TRIPHASE_SHARED(type, name, count)                                       \
  static thread_local constinit ::triphase::emulated::SharedArray<type, (count)> \
      name##_of_block{};                                                         \
  type* const name = name##_of_block.enter(#name)
#define TRIPHASE_DYNAMIC_SHARED(name) \
  unsigned char* const name = ::triphase::emulated::dynamic_shared()
#define TRIPHASE_UNROLL
#define TRIPHASE_UNROLL_BY(rounds)
#define TRIPHASE_NO_UNROLL

namespace triphase::cuda {

using dim3 = emulated::Dim3;

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }

struct Half {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

namespace detail {

template <class... Parameters>
constexpr Launch::Thread thread_of() {
  return [](const void* kernel, const std::byte* arguments) {
    std::apply(reinterpret_cast<void (*)(Parameters...)>(const_cast<void*>(kernel)),
               LaunchArguments<Parameters...>::read(arguments));
  };
}

inline void run_at_once(const Launch& launch) { emulated::run(launch); }

template <class T>
std::uint64_t to_word(T value) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(T));
  return word;
}
template <class T>
T from_word(std::uint64_t word) {
  T value;
  std::memcpy(&value, &word, sizeof(T));
  return value;
}
inline int lane() {
  return static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
}
template <class T>
T aligned_load(const void* from) {
  emulated::check_aligned(from, sizeof(T));
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}
template <class T>
void aligned_store(void* to, T value) {
  emulated::check_aligned(to, sizeof(T));
  std::memcpy(to, &value, sizeof(T));
}

}  // namespace detail

template <class Shape>
void check_launched(const char* /*kernel*/, const Shape& /*shape*/) {}
template <class Kernel, class Shape>
void allow_shared_bytes(Kernel* kernel, std::size_t bytes, const char* /*name*/,
                        const Shape& /*shape*/) {
  const auto* address = reinterpret_cast<const void*>(kernel);
  raise_shared_bytes(address, 0, bytes, [&] { emulated::allow_shared_bytes(address, bytes); });
}

inline void device_check(bool condition) {
  if (!condition) emulated::fault("device_check failed");
}

template <class T>
T shuffle(T value, int from_lane) {
  const std::uint64_t* all = emulated::warp_exchange("shuffle", detail::to_word(value));
  return detail::from_word<T>(all[from_lane & 31]);
}
template <class T>
T shuffle_xor(T value, int lane_mask) {
  const std::uint64_t* all = emulated::warp_exchange("shuffle_xor", detail::to_word(value));
  return detail::from_word<T>(all[(detail::lane() ^ lane_mask) & 31]);
}
inline unsigned ballot(bool predicate) {
  const std::uint64_t* all = emulated::warp_exchange("ballot", predicate ? 1 : 0);
  unsigned bits = 0;
  for (unsigned i = 0; i < 32; ++i) bits |= static_cast<unsigned>(all[i]) << i;
  return bits;
}
inline void sync_warp() { (void)emulated::warp_exchange("sync_warp", 0); }

// One fiber runs at a time: only the race check must know that these accesses are atomic.
template <class T>
T atomic_add(T* at, T value) {
  T before;
  __atomic_load(at, &before, __ATOMIC_RELAXED);
  T after = before + value;
  __atomic_store(at, &after, __ATOMIC_RELAXED);
  return before;
}
template <class T>
T atomic_or(T* at, T value) {
  T before;
  __atomic_load(at, &before, __ATOMIC_RELAXED);
  T after = before | value;
  __atomic_store(at, &after, __ATOMIC_RELAXED);
  return before;
}
inline int count_bits(unsigned value) { return std::popcount(value); }
inline int first_bit(unsigned value) { return value == 0 ? -1 : std::countr_zero(value); }
inline unsigned float_bits(float value) { return std::bit_cast<unsigned>(value); }
inline float bits_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned byte_permute(unsigned low, unsigned high, unsigned selector) {
  const std::uint64_t bytes = std::uint64_t{high} << 32 | low;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned pick = selector >> (4 * i) & 7U;
    result |= static_cast<unsigned>(bytes >> (8 * pick) & 0xFFU) << (8 * i);
  }
  return result;
}
inline float exp2_fast(float value) { return std::exp2(value); }
inline float log2_fast(float value) { return std::log2(value); }
inline float round_even(float value) { return std::nearbyint(value); }
template <class Integer>
Integer round_within(float value) {
  using Limits = std::numeric_limits<Integer>;
  if (std::isnan(value)) return 0;
  const double nearest = std::nearbyint(static_cast<double>(value));
  if (nearest <= static_cast<double>(Limits::min())) return Limits::min();
  if (nearest >= static_cast<double>(Limits::max())) return Limits::max();
  return static_cast<Integer>(nearest);
}
inline int round_to_int(float value) { return round_within<int>(value); }
inline unsigned round_to_unsigned(float value) { return round_within<unsigned>(value); }
inline float mul_rn(float a, float b) { return a * b; }
inline float add_rn(float a, float b) { return a + b; }
inline float sub_rn(float a, float b) { return a - b; }
inline float div_rn(float a, float b) { return a / b; }
inline float fma_rn(float a, float b, float c) { return std::fma(a, b, c); }

inline float to_float(float value) { return value; }
// What each Half is: products convert so many that calls would be a tenth of the emulator's time.
inline const std::vector<float> kHalves = [] {
  std::vector<float> all(std::size_t{1} << 16);
  for (std::size_t bits = 0; bits < all.size(); ++bits) {
    all[bits] = f16_to_f32(static_cast<std::uint16_t>(bits));
  }
  return all;
}();
TRIPHASE_UNCHECKED inline float to_float(Half value) { return kHalves[value.bits]; }
inline float to_float(BFloat16 value) { return bf16_to_f32(value.bits); }
template <class T>
T from_float(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else if constexpr (std::is_same_v<T, Half>) {
    return Half{f32_to_f16(value)};
  } else {
    return BFloat16{f32_to_bf16(value)};
  }
}
template <class T>
float2 unpack2(unsigned bits) {
  return {to_float(T{static_cast<std::uint16_t>(bits & 0xFFFFU)}),
          to_float(T{static_cast<std::uint16_t>(bits >> 16)})};
}
template <class T>
unsigned pack2(float first, float second) {
  return static_cast<unsigned>(from_float<T>(first).bits) |
         static_cast<unsigned>(from_float<T>(second).bits) << 16;
}

inline uint4 load16(const void* from) { return detail::aligned_load<uint4>(from); }
inline uint2 load8(const void* from) { return detail::aligned_load<uint2>(from); }
inline unsigned load4(const void* from) { return detail::aligned_load<unsigned>(from); }
inline uint4 load_shared16(const void* from) { return load16(from); }
inline uint2 load_shared8(const void* from) { return load8(from); }
inline unsigned load_shared4(const void* from) { return load4(from); }
inline void store16(void* to, uint4 value) { detail::aligned_store(to, value); }
inline void store8(void* to, uint2 value) { detail::aligned_store(to, value); }
inline void store4(void* to, unsigned value) { detail::aligned_store(to, value); }

inline void copy_async16(void* to_shared, const void* from, bool valid) {
  emulated::copy_async(to_shared, valid ? from : nullptr, 16);
}
inline void copy_async8(void* to_shared, const void* from, bool valid) {
  emulated::copy_async(to_shared, valid ? from : nullptr, 8);
}
inline void copy_async_commit() { emulated::copy_async_commit(); }
template <int kPending>
void copy_async_wait() {
  emulated::copy_async_wait(kPending);
}

namespace detail {

// A lane's two rows of A, row and row + 8, of a product of 16 columns.
using LaneRows = std::array<std::array<float, 16>, 2>;

inline std::uint64_t word_of(unsigned low, unsigned high) {
  return low | std::uint64_t{high} << 32;
}

// `all`: the two words of A that every lane has left.
template <class T>
LaneRows rows_of(const std::uint64_t* all, int lane) {
  LaneRows rows;
  for (std::size_t half = 0; half < 2; ++half) {
    for (std::size_t k = 0; k < 8; k += 2) {
      const std::uint64_t words =
          all[half * kWarpSize + static_cast<std::size_t>(lane) / 4 * 4 + k / 2];
      for (std::size_t row = 0; row < 2; ++row) {
        const float2 pair = unpack2<T>(static_cast<unsigned>(row == 0 ? words : words >> 32));
        rows[row][8 * half + k] = pair.x;
        rows[row][8 * half + k + 1] = pair.y;
      }
    }
  }
  return rows;
}

// A tensor-core product as its definition: everybody's fragments make whole matrices, of which a
// lane computes its own four elements. The layout is written out here once more, on purpose: the
// kernels' side of it stands in kernels/cuda/dialect.h.
template <class T>
void multiply_tiles(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  float columns[2][16];  // of B: pair and pair + 1
  const int mine = lane();
  const std::uint64_t* all = emulated::warp_exchange(
      "multiply_tiles", std::array{word_of(a[0], a[1]), word_of(a[2], a[3]), word_of(b[0], b[1])});
  const LaneRows rows = rows_of<T>(all, mine);
  const auto unpack = [](std::uint64_t words, int at) {
    return unpack2<T>(static_cast<unsigned>(at == 0 ? words : words >> 32));
  };
  for (int column = 0; column < 2; ++column) {
    for (int k = 0; k < 16; k += 2) {
      const float2 pair =
          unpack(all[2 * kWarpSize + (mine % 4 * 2 + column) * 4 + k % 8 / 2], k / 8);
      columns[column][k] = pair.x;
      columns[column][k + 1] = pair.y;
    }
  }
  for (std::size_t row = 0; row < 2; ++row) {
    for (std::size_t column = 0; column < 2; ++column) {
      float sum = c[2 * row + column];
      for (std::size_t k = 0; k < 16; ++k) sum += rows[row][k] * columns[column][k];
      c[2 * row + column] = sum;
    }
  }
}

template <bool kSigned>
void multiply_codes(int (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  int rows[2][32];     // of A: row and row + 8
  int columns[2][32];  // of B: pair and pair + 1
  const int mine = lane();
  const auto byte = [](std::uint64_t words, int at, bool is_signed) {
    const auto bits = static_cast<std::uint8_t>(words >> 8 * at);
    return is_signed ? static_cast<int>(static_cast<std::int8_t>(bits)) : static_cast<int>(bits);
  };
  const std::uint64_t* all = emulated::warp_exchange(
      "multiply_codes", std::array{word_of(a[0], a[1]), word_of(a[2], a[3]), word_of(b[0], b[1])});
  for (int half = 0; half < 2; ++half) {
    for (int k = 0; k < 16; ++k) {
      const std::uint64_t words = all[half * kWarpSize + mine / 4 * 4 + k / 4];
      for (int row = 0; row < 2; ++row) {
        rows[row][16 * half + k] = byte(words, 4 * row + k % 4, false);
      }
    }
  }
  for (int column = 0; column < 2; ++column) {
    for (int k = 0; k < 32; ++k) {
      const std::uint64_t words = all[2 * kWarpSize + (mine % 4 * 2 + column) * 4 + k % 16 / 4];
      columns[column][k] = byte(words, k / 16 * 4 + k % 4, kSigned);
    }
  }
  for (int row = 0; row < 2; ++row) {
    for (int column = 0; column < 2; ++column) {
      for (int k = 0; k < 32; ++k) c[2 * row + column] += rows[row][k] * columns[column][k];
    }
  }
}

}  // namespace detail

}  // namespace triphase::cuda
