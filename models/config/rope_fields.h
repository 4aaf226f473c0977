#pragma once

// Rotary embedding settings from a config, in both layouts that exist: rope_theta and rope_scaling
// at the top level (transformers 4), or all of it inside rope_parameters (transformers 5).

#include <cstdint>
#include <optional>
#include <string_view>

#include "models/config/config_fields.h"
#include "models/config/model_config.h"

namespace triphase {

// How a family spells what the layouts leave open.
struct RopeDefaults {
  std::string_view theta_key = "rope_theta";  // top-level name; GPT-NeoX: rotary_emb_base
  std::string_view fraction_key = "partial_rotary_factor";  // likewise; GPT-NeoX: rotary_pct
  bool partial = false;                                     // may rotate a part of each head
  double rotary_fraction = 1.0;                             // when none is given
  double theta = 10000.0;                                   // when none is given
  // The member of rope_parameters that holds the settings, where it has members of layer types.
  std::string_view layer_type{};
  bool extended = false;  // max_position_embeddings is the length after scaling
  // original_max_position_embeddings, when the top level gives none; the scaling's own is not read
  // then.
  std::optional<std::int64_t> original_positions{};
};

// The object that holds the settings, if there is one.
[[nodiscard]] std::optional<ConfigFields> rope_settings(const ConfigFields& fields,
                                                        const RopeDefaults& defaults = {});

// Reads the rotary settings and raises config.max_positions where scaling extends the context.
// Needs config.head_dim and config.max_positions (max_position_embeddings). Throws E-CFG-ROPE for
// scaling types that are not computed and for missing or senseless values.
[[nodiscard]] RopeConfig read_rope(const ConfigFields& fields, const RopeDefaults& defaults,
                                   ModelConfig& config, Notes& notes);

// Those of layers with a window, where they are told apart: unscaled, over whole heads. Theta from
// rope_parameters.sliding_attention, or at the top level from `theta_key`, or `theta`.
[[nodiscard]] RopeConfig read_window_rope(const ConfigFields& fields, std::string_view theta_key,
                                          double theta, const ModelConfig& config);

}  // namespace triphase
