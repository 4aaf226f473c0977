#include "models/layer_ropes.h"

namespace triphase {

LayerRopes::LayerRopes(const ModelConfig& config)
    : by_layer_(static_cast<std::size_t>(config.layers)) {
  if (!config.rope) return;
  tables_.emplace_back(*config.rope, config.max_positions);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    if (config.rotates(layer)) by_layer_[static_cast<std::size_t>(layer)] = 0;
  }
}

std::uint64_t LayerRopes::key_for_prompt(std::int64_t prompt_tokens) const {
  return tables_.empty() ? 0 : tables_.front().key_for_prompt(prompt_tokens);
}

}  // namespace triphase
