#pragma once

// A model's weights where the arithmetic wants them: matrices in the checkpoint's own type, biases
// and norm vectors in F32. ModelWeights owns the memory (from one Device); the decoder only reads.
// Safe to read from many threads.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/device.h"
#include "base/dtype.h"
#include "kernels/random_values.h"
#include "models/config/model_config.h"

namespace triphase {

class WeightFiles;

// Null pointers and empty matrices: the model has no such part. Matrices are [out, in].
struct LayerWeights {
  const float* attention_norm = nullptr;  // [hidden]
  const float* attention_norm_bias = nullptr;
  // Rows: all query heads, then all key heads, then all value heads, head_dim rows each
  // (interleaved rows of a file are put into this order while loading).
  ConstMatrix qkv;  // [(heads + 2 kv_heads) * head_dim, hidden]
  const float* qkv_bias = nullptr;
  const float* query_norm = nullptr;  // [head_dim], the same for every head, or [heads * head_dim]
  const float* key_norm = nullptr;
  const float* sinks = nullptr;  // [heads]: ScoreScale::sinks
  ConstMatrix attention_out;     // [hidden, heads * head_dim]
  const float* attention_out_bias = nullptr;
  const float* attention_output_norm = nullptr;  // [hidden]
  const float* mlp_norm = nullptr;
  const float* mlp_norm_bias = nullptr;
  ConstMatrix router;  // [experts, hidden]; of layers with experts, whose `up` and `down` lie one
                       // after the other: rows of all experts. Their biases too
  const float* router_bias = nullptr;
  ConstMatrix up;  // [ffn, hidden]; gated models: [2 * ffn, hidden], gate rows first
  const float* up_bias = nullptr;
  ConstMatrix down;  // [hidden, ffn]
  const float* down_bias = nullptr;
  const float* mlp_output_norm = nullptr;
};

struct WeightOptions {
  enum class Check : std::uint8_t { kRefuse, kWarn, kOff };
  Check check = Check::kRefuse;  // NaN and Inf in weights (bad-inputs M29)
};

// Where weights live. Streamed layers stay in `host` memory, one contiguous range each, and come to
// the device when they are needed (models/weight_stream.h).
struct WeightHomes {
  // NOLINTNEXTLINE(google-explicit-constructor): a device alone is the usual home
  WeightHomes(Device& all, RandomFill fill = {}) : device(&all), random_fill(std::move(fill)) {}
  WeightHomes(Device& device_memory, Device& host_memory, std::int64_t layers_streamed,
              RandomFill fill = {})
      : device(&device_memory),
        host(&host_memory),
        streamed_layers(layers_streamed),
        random_fill(std::move(fill)) {}

  Device* device;
  Device* host = nullptr;
  std::int64_t streamed_layers = 0;
  // Fills memory of `device`; of random_weights where the host cannot write there.
  RandomFill random_fill;

  // Streamed layers are spread evenly, so that the link works while resident ones compute.
  [[nodiscard]] bool streamed(std::int64_t layer, std::int64_t layers) const {
    return spread(layer, layers, streamed_layers);
  }
  // Whether `layer` is one of `count` that are spread evenly over all.
  [[nodiscard]] static bool spread(std::int64_t layer, std::int64_t layers, std::int64_t count) {
    return (layer + 1) * count / layers > layer * count / layers;
  }
};

class ModelWeights {
 public:
  // A streamed layer's bytes on the host; no data: the layer is resident.
  struct HostLayer {
    const std::byte* data = nullptr;
    std::uint64_t bytes = 0;
  };

  ModelWeights(const ModelWeights&) = delete;
  ModelWeights& operator=(const ModelWeights&) = delete;
  virtual ~ModelWeights() = default;

  ConstMatrix embedding;          // [vocab rows in the file, embed_dim]
  ConstMatrix positions;          // learned: [max_positions + offset, hidden]
  ConstMatrix embed_project_in;   // [hidden, embed_dim] (OPT-350m)
  ConstMatrix embed_project_out;  // [embed_dim, hidden]
  const float* final_norm = nullptr;
  const float* final_norm_bias = nullptr;
  ConstMatrix lm_head;               // [vocab, embed_dim]; the embedding itself when tied
  std::vector<LayerWeights> layers;  // of a streamed layer: where it is on the host
  std::vector<HostLayer> host_layers;
  std::uint64_t bytes = 0;       // device bytes held
  std::uint64_t host_bytes = 0;  // host bytes held

 protected:
  ModelWeights() = default;
};

// Called while loading with bytes read so far and in all; may be empty.
using LoadProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

// Reads every tensor the config needs (names, shapes and types from models/config/tensor_manifest),
// with pread, through staging memory that is given back. Throws ErrorRole::kModel naming file and
// tensor.
[[nodiscard]] std::unique_ptr<ModelWeights> load_weights(const WeightFiles& files,
                                                         const ModelConfig& config,
                                                         const WeightHomes& homes,
                                                         const WeightOptions& options, Notes& notes,
                                                         const LoadProgress& progress);

// Reproducible random weights of the same layout (--random-weights): matrices uniform with variance
// 1/in, norms 1, biases 0, so that activations keep their scale and logits stay finite.
[[nodiscard]] std::unique_ptr<ModelWeights> random_weights(const ModelConfig& config, DType dtype,
                                                           std::uint64_t seed,
                                                           const WeightHomes& homes,
                                                           const LoadProgress& progress);

// Bytes load_weights or random_weights will hold with matrices of `dtype`; checked arithmetic.
[[nodiscard]] std::uint64_t weight_bytes(const ModelConfig& config, DType dtype);
// Those of each layer.
[[nodiscard]] std::vector<std::uint64_t> layer_bytes(const ModelConfig& config, DType dtype);

}  // namespace triphase
