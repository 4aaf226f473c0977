#pragma once

#include <cstdint>

namespace triphase {

enum class Activation : std::uint8_t {
  kRelu,
  kGeluErf,   // x/2 (1 + erf(x / sqrt 2))
  kGeluTanh,  // the tanh approximation ("gelu_new", "gelu_pytorch_tanh")
  kSilu,      // x / (1 + exp(-x))
};

}  // namespace triphase
