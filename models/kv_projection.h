#pragma once

// The part of a layer's joint projection that makes K and V, and the norm of its keys: what is done
// again where KV is recomputed from hidden states.

#include "kernels/ops.h"
#include "models/config/model_config.h"
#include "models/weights/weights.h"

namespace triphase {

// W_K and W_V, [2 * kv_width, hidden]: their rows follow those of W_Q.
[[nodiscard]] inline ConstMatrix kv_projection(const LayerWeights& weights,
                                               const ModelConfig& config) {
  ConstMatrix part = weights.qkv;
  const auto element = static_cast<std::int64_t>(dtype_bytes(part.dtype));
  part.data =
      static_cast<const std::byte*>(part.data) + config.q_width() * part.row_stride * element;
  part.rows = 2 * config.kv_width();
  return part;
}

// Their bias; null without one.
[[nodiscard]] inline const float* kv_projection_bias(const LayerWeights& weights,
                                                     const ModelConfig& config) {
  return weights.qkv_bias == nullptr ? nullptr : weights.qkv_bias + config.q_width();
}

// The norm that the model gives to queries, or to keys, x [T, heads * head_dim]; `weight` null:
// none.
inline void norm_of_heads(const ModelConfig& config, const float* weight, std::int64_t heads,
                          Matrix x, Ops& ops, Stream& stream) {
  if (weight == nullptr) return;
  ops.head_norm(x, config.norms.qk == QkNorm::kHead ? heads : 1, weight,
                config.norms.weight_offset(), static_cast<float>(config.norms.eps), stream);
}

}  // namespace triphase
