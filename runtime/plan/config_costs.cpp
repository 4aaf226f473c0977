#include "runtime/plan/config_costs.h"

#include <algorithm>
#include <span>
#include <utility>

#include "models/config/tensor_manifest.h"

namespace triphase {

using flexgen::Module;

namespace {

// The tensors of a slot of one layer; none: the model has no such part.
Module tensors(std::span<const WeightEntry> layer, WeightSlot slot) {
  Module sizes;
  const auto entry = std::ranges::find(layer, slot, &WeightEntry::slot);
  if (entry == layer.end()) return sizes;
  for (const TensorPart& part : entry->parts) {
    sizes.push_back(static_cast<double>(part.rows) * static_cast<double>(entry->cols));
  }
  return sizes;
}

void add_matrices(std::span<const WeightEntry> layer, WeightSlot weights, WeightSlot biases,
                  Module& module) {
  const Module matrices = tensors(layer, weights);
  const Module vectors = tensors(layer, biases);
  for (std::size_t index = 0; index < matrices.size(); ++index) {
    module.push_back(matrices[index]);
    if (index < vectors.size()) module.push_back(vectors[index]);
  }
}

}  // namespace

std::vector<Module> layer_modules(const ModelConfig& config) {
  std::vector<WeightEntry> layer = weight_manifest(config);
  std::erase_if(layer, [](const WeightEntry& entry) { return entry.layer != 0; });
  Module attention;
  add_matrices(layer, WeightSlot::kQkv, WeightSlot::kQkvBias, attention);
  add_matrices(layer, WeightSlot::kAttentionOut, WeightSlot::kAttentionOutBias, attention);
  add_matrices(layer, WeightSlot::kAttentionNorm, WeightSlot::kAttentionNormBias, attention);
  Module mlp;
  add_matrices(layer, WeightSlot::kUp, WeightSlot::kUpBias, mlp);
  add_matrices(layer, WeightSlot::kDown, WeightSlot::kDownBias, mlp);
  add_matrices(layer, WeightSlot::kMlpNorm, WeightSlot::kMlpNormBias, mlp);
  return {std::move(attention), std::move(mlp)};
}

ModelCosts model_costs(const ModelConfig& config, DType dtype) {
  ModelCosts costs{.layers = config.layers,
                   .hidden = config.hidden_size,
                   .ffn = config.ffn_size,
                   .q_width = config.q_width(),
                   .kv_width = config.kv_width(),
                   .vocab = config.vocab_size};
  costs.layer_modules = layer_modules(config);
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

}  // namespace triphase
