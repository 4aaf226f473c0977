#pragma once

// Activations (base/activation.h) of one number. Included by kernels only.

#include <cmath>

#include "base/activation.h"
#include "kernels/cuda/dialect.h"

namespace triphase::cuda {

__device__ inline float activated(Activation activation, float x) {
  switch (activation) {
    case Activation::kRelu:
      return x < 0.0F ? 0.0F : x;  // NaN stays NaN
    case Activation::kGeluErf:
      return 0.5F * x * (1.0F + erff(x * 0.70710678F));
    case Activation::kGeluTanh:
      return 0.5F * x * (1.0F + tanhf(0.79788456F * (x + 0.044715F * x * x * x)));
    case Activation::kSilu:
      return x / (1.0F + expf(-x));
  }
  return x;
}

}  // namespace triphase::cuda
