#pragma once

#include <cstdint>

namespace triphase {

enum class Activation : std::uint8_t {
  kRelu,
  kGeluErf,   // x/2 (1 + erf(x / sqrt 2))
  kGeluTanh,  // the tanh approximation ("gelu_new", "gelu_pytorch_tanh")
  kSilu,      // x / (1 + exp(-x))
  // Of gated networks: x / (1 + exp(-1.702 x)) of x = min(gate, 7), times clamp(up, -7, 7) + 1.
  kSwigluOai,
};

inline constexpr float kSwigluOaiAlpha = 1.702F;
inline constexpr float kSwigluOaiLimit = 7.0F;

}  // namespace triphase
