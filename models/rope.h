#pragma once

// Rotary position angles. Computed in float64 from the config, stored as F32 cosines and sines per
// token, so that every scaling type costs the same in the kernels. Immutable, thread safe.

#include <cstdint>
#include <span>
#include <vector>

#include "models/config/model_config.h"

namespace triphase {

class RopeTable {
 public:
  // `max_positions`: the context the model was made for (config), the base of dynamic scaling.
  RopeTable(const RopeConfig& config, std::int64_t max_positions);

  // What a sequence's angles depend on besides the position: 0, or where the prompt exceeds the
  // original context, its length with dynamic scaling, 1 with long. Chosen at admission, it stays.
  [[nodiscard]] std::uint64_t key_for_prompt(std::int64_t prompt_tokens) const;

  // The rotary_dim / 2 frequencies (radians per token) under `key`.
  [[nodiscard]] std::vector<double> frequencies(std::uint64_t key) const;

  // Writes rotary_dim / 2 cosines, then as many sines, times the attention factor (yarn), of
  // `position` under `key`.
  void fill(std::uint64_t key, std::int64_t position, std::span<float> cos_sin) const;

  [[nodiscard]] std::int64_t rotary_dim() const { return config_.rotary_dim; }

 private:
  RopeConfig config_;
  std::int64_t original_max_;
  double attention_factor_ = 1.0;
  std::vector<double> base_frequencies_;  // key 0
  std::vector<double> long_frequencies_;  // key 1 with long scaling
};

}  // namespace triphase
