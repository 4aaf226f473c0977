#include "scheduler/cost/model_costs.h"

#include "models/config/tensor_manifest.h"
#include "scheduler/flexgen/weight_rounding.h"

namespace triphase {

ModelCosts model_costs(const ModelConfig& config, DType dtype) {
  ModelCosts costs{.layers = config.layers,
                   .hidden = config.hidden_size,
                   .ffn = config.ffn_size,
                   .q_width = config.q_width(),
                   .kv_width = config.kv_width(),
                   .vocab = config.vocab_size};
  costs.layer_modules = flexgen::layer_modules(config);
  std::vector<WeightEntry> layer;
  for (const WeightEntry& entry : weight_manifest(config)) {
    if (entry.layer != 0) continue;
    layer.push_back(entry);
    if (!entry.vector) {
      costs.layer_matmul += static_cast<double>(entry.rows) * static_cast<double>(entry.cols);
    }
  }
  costs.layer_weights = manifest_bytes(layer, dtype);
  costs.other_weights = manifest_bytes(weight_manifest(config), dtype) -
                        costs.layer_weights * static_cast<std::uint64_t>(config.layers);
  costs.head_matmul =
      static_cast<double>(config.vocab_size) * static_cast<double>(config.embed_dim);
  return costs;
}

double kv_record_bytes(const ModelCosts& model, DType kv_dtype) {
  return 2.0 * static_cast<double>(model.kv_width) * static_cast<double>(dtype_bytes(kv_dtype));
}

double kv_layer_bytes(const ModelCosts& model, DType kv_dtype, std::int64_t block_tokens) {
  const auto width = static_cast<double>(model.kv_width);
  const double values = kv_record_bytes(model, kv_dtype);
  if (kv_dtype != DType::kInt8) return values;
  return values + 8.0 * width / static_cast<double>(block_tokens);
}

double input_layer_bytes(const ModelCosts& model) {
  return static_cast<double>(model.hidden) + 4.0;
}

std::uint64_t scratch_bytes(const ModelCosts& model, std::int64_t rows, std::int64_t logit_rows,
                            DType dtype) {
  // Hidden state, its normed copy, q, k, v, attention output and two feed-forward buffers.
  const std::int64_t row =
      3 * model.hidden + 2 * model.q_width + 2 * model.kv_width + 2 * model.ffn;
  return static_cast<std::uint64_t>(rows * row) * dtype_bytes(dtype) +
         static_cast<std::uint64_t>(logit_rows * model.vocab) * sizeof(float);
}

}  // namespace triphase
