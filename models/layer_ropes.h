#pragma once

// The rotary tables of a model, and which table rotates a layer's queries and keys. Immutable,
// thread safe.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "models/config/model_config.h"
#include "models/rope.h"

namespace triphase {

class LayerRopes {
 public:
  explicit LayerRopes(const ModelConfig& config);

  [[nodiscard]] std::span<const RopeTable> tables() const { return tables_; }
  // Which of tables() is the layer's; nothing: its positions are not rotated.
  [[nodiscard]] std::optional<std::size_t> of(std::int64_t layer) const { return by_layer_[layer]; }
  // Bytes of the angles of `rows` rows under every table.
  [[nodiscard]] static std::uint64_t angle_bytes(const ModelConfig& config, std::int64_t rows);
  // RopeTable::key_for_prompt() of the model: at most one of its tables knows other keys than 0.
  [[nodiscard]] std::uint64_t key_for_prompt(std::int64_t prompt_tokens) const;

 private:
  std::vector<RopeTable> tables_;
  std::vector<std::optional<std::size_t>> by_layer_;
};

}  // namespace triphase
