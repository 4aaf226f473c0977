#include "scheduler/flexgen/weight_rounding.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "models/config/tensor_manifest.h"

namespace triphase::flexgen {
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

double held_share(std::span<const Module> modules, double asked) {
  double all = 0.0;
  double held = 0.0;
  for (const Module& module : modules) {
    const double total = std::accumulate(module.begin(), module.end(), 0.0);
    double before = 0.0;
    for (const double size : module) {
      // A share that is all but equal to the middle counts as equal.
      const bool on_device = before + size / 2.0 >= (1.0 - asked) * total * (1.0 - 1e-12);
      if (on_device) held += size;
      before += size;
    }
    all += total;
  }
  return all > 0.0 ? held / all : asked;
}

std::int64_t held_layers(std::span<const Module> modules, double asked, std::int64_t layers) {
  return std::llround(held_share(modules, asked) * static_cast<double>(layers));
}

}  // namespace triphase::flexgen
