#pragma once

// Bytes and operations of a model's parts: all that planner, simulator and derived profiles know of
// a model (runtime/plan/config_costs.h makes it of a config). PURE. Sizes in bytes.

#include <cstdint>
#include <vector>

#include "base/dtype.h"

namespace triphase {

struct ModelCosts {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t ffn = 0;
  std::int64_t q_width = 0;
  std::int64_t kv_width = 0;
  std::int64_t vocab = 0;
  std::uint64_t layer_weights = 0;  // of one decoder layer
  std::uint64_t other_weights = 0;  // embeddings, output head, final norm
  double layer_matmul = 0.0;        // multiply-adds of one token in one layer's matrices
  double head_matmul = 0.0;         // of the output head
  std::vector<std::vector<double>> layer_modules;  // flexgen/weight_rounding.h

  [[nodiscard]] std::uint64_t weights() const {
    return layer_weights * static_cast<std::uint64_t>(layers) + other_weights;
  }
};

// K and V of one token in one layer. INT8 adds scales and zero points, FP32 for each channel of
// K and of V in every block of tokens.
[[nodiscard]] double kv_layer_bytes(const ModelCosts& model, DType kv_dtype,
                                    std::int64_t block_tokens);

// K and V of one token as they cross the link: without INT8's scales, which stay on the device.
[[nodiscard]] double kv_record_bytes(const ModelCosts& model, DType kv_dtype);

// Cached hidden states X of one token in one layer: INT8 values and a scale (FP32) per token.
[[nodiscard]] double input_layer_bytes(const ModelCosts& model);

// Activations and workspace on the device for a step of this many rows, `logit_rows` of which are
// sampled from.
[[nodiscard]] std::uint64_t scratch_bytes(const ModelCosts& model, std::int64_t rows,
                                          std::int64_t logit_rows, DType dtype);

}  // namespace triphase
