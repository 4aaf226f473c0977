#pragma once

// Activations (base/activation.h) of one number. Included by kernels only.

#include <cmath>

#include "base/activation.h"
#include "kernels/cuda/dialect.h"

namespace triphase::cuda {

__device__ inline float at_most(float x, float limit) {
  return x > limit ? limit : x;  // NaN stays NaN
}

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
    case Activation::kSwigluOai: {
      const float gate = at_most(x, kSwigluOaiLimit);
      return gate / (1.0F + expf(-kSwigluOaiAlpha * gate));
    }
  }
  return x;
}

// What a gated network makes of its two products.
__device__ inline float gated_value(Activation activation, float gate, float up) {
  if (activation == Activation::kSwigluOai) {
    up = 1.0F - at_most(-at_most(up, kSwigluOaiLimit), kSwigluOaiLimit);
  }
  return activated(activation, gate) * up;
}

}  // namespace triphase::cuda
