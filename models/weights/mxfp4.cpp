#include "models/weights/mxfp4.h"

#include <array>
#include <cmath>
#include <limits>

#include "base/dtype.h"
#include "base/error.h"

namespace triphase {
namespace {

using Codes = std::array<std::uint16_t, 16>;  // BF16 by code

// By scale.
std::array<Codes, 256> make_values() {
  constexpr std::array<float, 8> kMagnitudes{0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  std::array<Codes, 256> values{};
  for (std::size_t scale = 0; scale < values.size(); ++scale) {
    const float power = scale == 255 ? std::numeric_limits<float>::quiet_NaN()
                                     : std::ldexp(1.0F, static_cast<int>(scale) - 127);
    for (std::size_t code = 0; code < kMagnitudes.size(); ++code) {
      values[scale][code] = f32_to_bf16(kMagnitudes[code] * power);
      values[scale][code + 8] = f32_to_bf16(-kMagnitudes[code] * power);
    }
  }
  return values;
}

}  // namespace

void dequantize_mxfp4(std::span<const std::byte> blocks, std::span<const std::byte> scales,
                      std::span<std::uint16_t> out) {
  static const std::array<Codes, 256> kValues = make_values();
  constexpr auto kBytes = static_cast<std::size_t>(kMxfp4Group) / 2;
  TRIPHASE_CHECK(blocks.size() == scales.size() * kBytes && out.size() == 2 * blocks.size(),
                 "MXFP4 blocks and scales of other sizes");
  for (std::size_t group = 0; group < scales.size(); ++group) {
    const Codes& values = kValues[std::to_integer<std::size_t>(scales[group])];
    for (std::size_t at = group * kBytes; at < (group + 1) * kBytes; ++at) {
      const auto byte = std::to_integer<std::size_t>(blocks[at]);
      out[2 * at] = values[byte & 15];
      out[2 * at + 1] = values[byte >> 4];
    }
  }
}

}  // namespace triphase
