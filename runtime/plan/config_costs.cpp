#include "runtime/plan/config_costs.h"

#include <algorithm>
#include <map>
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
  std::int64_t typical = 0;
  while (config.experts.count > 0 && !config.has_experts(typical)) ++typical;
  std::vector<WeightEntry> layer = weight_manifest(config);
  std::erase_if(layer, [&](const WeightEntry& entry) { return entry.layer != typical; });
  Module attention;
  add_matrices(layer, WeightSlot::kQkv, WeightSlot::kQkvBias, attention);
  add_matrices(layer, WeightSlot::kAttentionOut, WeightSlot::kAttentionOutBias, attention);
  add_matrices(layer, WeightSlot::kAttentionNorm, WeightSlot::kAttentionNormBias, attention);
  const Module sinks = tensors(layer, WeightSlot::kSinks);
  attention.insert(attention.end(), sinks.begin(), sinks.end());
  Module mlp;
  add_matrices(layer, WeightSlot::kRouter, WeightSlot::kRouterBias, mlp);
  add_matrices(layer, WeightSlot::kUp, WeightSlot::kUpBias, mlp);
  add_matrices(layer, WeightSlot::kDown, WeightSlot::kDownBias, mlp);
  add_matrices(layer, WeightSlot::kMlpNorm, WeightSlot::kMlpNormBias, mlp);
  return {std::move(attention), std::move(mlp)};
}

ModelCosts model_costs(const ModelConfig& config, DType dtype) {
  const ExpertConfig& experts = config.experts;
  ModelCosts costs{.layers = config.layers,
                   .hidden = config.hidden_size,
                   .ffn = config.ffn_size,
                   .q_width = config.q_width(),
                   .kv_width = config.kv_width(),
                   .head_dim = config.head_dim,
                   .vocab = config.vocab_size};
  costs.layer_modules = layer_modules(config);
  std::map<std::int64_t, std::int64_t> sliding;  // layers by window
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const std::int64_t window = config.window(layer);
    if (window > 0 && window < config.max_positions) ++sliding[window];
  }
  for (const auto& [window, layers] : sliding) costs.sliding.push_back({window, layers});
  if (experts.count > 0) {
    costs.ffn = experts.per_token * experts.ffn_size;
    costs.held_ffn = experts.count * experts.ffn_size;
    costs.routed_width = experts.per_token * config.hidden_size + experts.count;
    costs.expert_share =
        static_cast<double>(experts.per_token) / static_cast<double>(experts.count);
  }
  const std::vector<WeightEntry> manifest = weight_manifest(config);
  std::vector<WeightEntry> in_layers;
  double matmul = 0.0;
  for (const WeightEntry& entry : manifest) {
    if (entry.layer < 0) continue;
    in_layers.push_back(entry);
    if (entry.vector) continue;
    const double size = static_cast<double>(entry.rows) * static_cast<double>(entry.cols);
    const bool picked = config.has_experts(entry.layer) &&
                        (entry.slot == WeightSlot::kUp || entry.slot == WeightSlot::kDown);
    matmul += picked ? size * costs.expert_share : size;
    if (picked) costs.expert_weights += size * static_cast<double>(dtype_bytes(dtype));
  }
  const auto layers = static_cast<std::uint64_t>(config.layers);
  costs.layer_matmul = matmul / static_cast<double>(config.layers);
  costs.layer_weights = manifest_bytes(in_layers, dtype) / layers;
  costs.other_weights = manifest_bytes(manifest, dtype) - costs.layer_weights * layers;
  costs.head_matmul =
      static_cast<double>(config.vocab_size) * static_cast<double>(config.embed_dim);
  return costs;
}

}  // namespace triphase
