#pragma once

// Bytes and operations of a model's parts: all that planner, simulator and derived profiles know of
// a model (runtime/plan/config_costs.h makes it of a config). PURE. Sizes in bytes.

#include <cstdint>
#include <vector>

#include "base/dtype.h"

namespace triphase {

// Layers that attend the last `window` tokens alone.
struct SlidingLayers {
  std::int64_t window = 0;
  std::int64_t layers = 0;
};

// What tells the models apart that a profile's times hold for.
struct ModelShape {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t q_width = 0;
  std::int64_t kv_width = 0;
  std::int64_t head_dim = 0;
  std::int64_t ffn = 0;       // as ModelCosts has it
  std::int64_t held_ffn = 0;  // of all experts of a layer; without them ffn
  friend bool operator==(const ModelShape&, const ModelShape&) = default;
};

struct ModelCosts {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t ffn = 0;  // of what one token goes through: with experts, of those it picks together
  std::int64_t q_width = 0;
  std::int64_t kv_width = 0;
  std::int64_t head_dim = 0;
  std::int64_t vocab = 0;
  std::uint64_t layer_weights = 0;  // of one decoder layer, on average
  std::uint64_t other_weights = 0;  // embeddings, output head, final norm
  double layer_matmul = 0.0;  // multiply-adds of one token in one layer's matrices, on average
  double head_matmul = 0.0;   // of the output head
  std::vector<std::vector<double>> layer_modules;  // flexgen/weight_rounding.h
  // The other layers attend whole contexts, or what a sparse method chooses of them.
  std::vector<SlidingLayers> sliding;
  // Experts; without them as below.
  std::int64_t held_ffn = 0;      // as ffn, of all experts of a layer; 0: ffn
  std::int64_t routed_width = 0;  // a row's elements of router logits and of inputs by expert
  double expert_weights = 0.0;    // bytes of all layers' experts
  double expert_share = 1.0;      // of a layer's experts, those that a token picks

  [[nodiscard]] ModelShape shape() const {
    return {layers, hidden, q_width, kv_width, head_dim, ffn, held_ffn == 0 ? ffn : held_ffn};
  }
  [[nodiscard]] std::int64_t sliding_layers() const {
    std::int64_t count = 0;
    for (const SlidingLayers& some : sliding) count += some.layers;
    return count;
  }
  [[nodiscard]] std::uint64_t weights() const {
    return layer_weights * static_cast<std::uint64_t>(layers) + other_weights;
  }
};

// A share of the layers, 1 without sliding ones: those that attend whole contexts.
[[nodiscard]] double whole_share(const ModelCosts& model);
// How many of a context's first `tokens` tokens its last row attends in sliding layers, or reads
// there in whole blocks: a mean over all layers, to which the others add nothing.
[[nodiscard]] double windowed_tokens(const ModelCosts& model, double tokens, double context,
                                     std::int64_t block_tokens = 1);
// Tokens in front of so many rows of a prompt that these attend, a mean over all layers.
[[nodiscard]] double attended_before(const ModelCosts& model, double rows, double context);

// Bytes of weights that a step of so many rows reads, on average where tokens pick experts at
// random: an expert that none picks is not read.
[[nodiscard]] double read_weights(const ModelCosts& model, double rows);

// K and V of one token in one layer. INT8 adds a scale (4 bytes) for each channel of K and of V in
// every block of tokens.
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
