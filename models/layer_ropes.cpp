#include "models/layer_ropes.h"

#include "models/rope_rows.h"

namespace triphase {

LayerRopes::LayerRopes(const ModelConfig& config)
    : by_layer_(static_cast<std::size_t>(config.layers)) {
  if (!config.rope) return;
  tables_.emplace_back(*config.rope, config.max_positions);
  if (config.window_rope) tables_.emplace_back(*config.window_rope, config.max_positions);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    if (!config.rotates(layer)) continue;
    by_layer_[layer] = config.window_rope && config.window(layer) > 0;
  }
}

std::uint64_t LayerRopes::angle_bytes(const ModelConfig& config, std::int64_t rows) {
  std::uint64_t bytes = 0;
  for (const auto& rope : {config.rope, config.window_rope}) {
    if (rope) bytes += RopePositions::bytes(rope->rotary_dim, rows);
  }
  return bytes;
}

std::uint64_t LayerRopes::key_for_prompt(std::int64_t prompt_tokens) const {
  return tables_.empty() ? 0 : tables_.front().key_for_prompt(prompt_tokens);
}

}  // namespace triphase
