#include <algorithm>
#include <cmath>
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
  const float lambda = (high - low) / 255.0F;
  result.codes.assign(values.size(), 0);
  if (!finite || !std::isfinite(lambda)) {
    result.lambda = std::numeric_limits<float>::quiet_NaN();
    return result;
  }
  if (lambda == 0.0F) {
    result.lambda = high + 0.0F;
    result.zero = -1.0F;
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
