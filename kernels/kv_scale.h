#pragma once

// How a channel of a block of INT8 codes is read (kernels/ops.h: KvLayerView), in half the bytes of
// two F32 numbers: blocks wherever they lie have their scales on the device.

#include <cstdint>
#include <cstring>

#include "kernels/both_sides.h"

namespace triphase {

// x = lambda * (code - zero). The upper half is lambda, a BF16 number; the lower half is zero plus
// 32768, for a whole number zero within [-32768, 32767].
struct KvScale {
  std::uint32_t bits = 0;
  friend bool operator==(const KvScale&, const KvScale&) = default;
};
// Of a channel with a value that is not finite: lambda is NaN, and so is all that is read.
inline constexpr std::uint32_t kNoKvScale = 0x7FC08000U;

[[nodiscard]] TRIPHASE_BOTH float kv_lambda(std::uint32_t bits) {
  const std::uint32_t upper = bits & 0xFFFF0000U;
  float lambda = 0.0F;
  memcpy(&lambda, &upper, sizeof(lambda));
  return lambda;
}
// 2^23 + n, as F32, has n in its lowest bits.
[[nodiscard]] TRIPHASE_BOTH float kv_zero(std::uint32_t bits) {
  const std::uint32_t above = (bits & 0xFFFFU) | 0x4B000000U;
  float zero = 0.0F;
  memcpy(&zero, &above, sizeof(zero));
  return zero - 8421376.0F;  // 2^23 + 32768
}
// lambda's lower 16 bits are dropped.
[[nodiscard]] TRIPHASE_BOTH KvScale kv_scale(float lambda, float zero) {
  std::uint32_t bits = 0;
  memcpy(&bits, &lambda, sizeof(bits));
  return {(bits & 0xFFFF0000U) | static_cast<std::uint32_t>(static_cast<int>(zero) + 32768)};
}

}  // namespace triphase
