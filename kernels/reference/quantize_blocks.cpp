#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/reference/reference_ops.h"

namespace triphase::reference {

QuantizedChannel quantize_channel(std::span<const float> values) {
  QuantizedChannel result;
  float low = values[0];
  float high = values[0];
  bool finite = true;
  for (const float value : values) {
    low = std::min(low, value);
    high = std::max(high, value);
    finite = finite && std::isfinite(value);
  }
  // Up to the next BF16 number.
  const float step = std::bit_cast<float>(
      (std::bit_cast<std::uint32_t>(std::abs(high - low) / 255.0F) + 0xFFFFU) & 0xFFFF0000U);
  const float most = std::max(std::abs(low), std::abs(high));
  const float least = most > 0.0F ? std::ldexp(1.0F, std::ilogb(most) - 13) : 0.0F;
  const float lambda = std::max({step, least, 0x1p-126F});
  result.codes.assign(values.size(), 0);
  if (!finite || !std::isfinite(high - low)) {
    result.lambda = std::numeric_limits<float>::quiet_NaN();
    return result;
  }
  result.lambda = lambda;
  result.zero = std::nearbyint(-low / lambda) + 0.0F;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float code = std::nearbyint(values[i] / lambda + result.zero);
    result.codes[i] = static_cast<std::uint8_t>(std::clamp(code, 0.0F, 255.0F));
  }
  return result;
}

}  // namespace triphase::reference
