#pragma once

// MXFP4 weights (OCP Microscaling Formats 1.0): groups of 32 values in E2M1, two to a byte with the
// earlier one in the low bits, and for each group a power of two, its exponent biased by 127. Pure.

#include <cstddef>
#include <cstdint>
#include <span>

namespace triphase {

inline constexpr std::int64_t kMxfp4Group = 32;

// out[i] = value of element i as the bits of a BF16, exact: blocks hold out.size() / 2 bytes,
// scales out.size() / kMxfp4Group. What is too large becomes infinite; scale 255 is NaN.
void dequantize_mxfp4(std::span<const std::byte> blocks, std::span<const std::byte> scales,
                      std::span<std::uint16_t> out);

}  // namespace triphase
