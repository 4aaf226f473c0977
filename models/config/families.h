#pragma once

// One reader per family: fills a ModelConfig from the fields of config.json. Sizes shared by all
// families, token ids and refusals of what is not computed are model_config.cpp's.

#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "models/config/config_fields.h"
#include "models/config/model_config.h"

namespace triphase {

struct Family {
  std::string_view model_type;
  std::vector<std::string_view> architectures;
  void (*read)(const ConfigFields& fields, ModelConfig& config, Notes& notes);
  // Fields that are refused in models of other types (model_config.cpp).
  std::vector<std::string_view> reads{};
};

// Sorted by model_type.
[[nodiscard]] std::span<const Family> families();
[[nodiscard]] std::vector<Family> layer_norm_families();
[[nodiscard]] std::vector<Family> rms_norm_families();

// Shared steps -----------------------------------------------------------------------------------

// How a family spells its sizes, and which it may leave out.
struct SizeFields {
  std::string_view hidden = "hidden_size";
  std::string_view layers = "num_hidden_layers";
  std::string_view heads = "num_attention_heads";
  std::string_view positions = "max_position_embeddings";
  std::optional<std::int64_t> default_hidden{};
  std::optional<std::int64_t> default_layers{};
  std::optional<std::int64_t> default_heads{};
  std::optional<std::int64_t> default_vocab{};
  std::optional<std::int64_t> default_positions{};
  std::optional<std::int64_t> default_ffn{};       // of intermediate_size
  std::optional<std::int64_t> default_head_dim{};  // nothing: see read_head_dim()
  double default_eps = 1e-6;                       // of rms_norm_eps
};

// A size of config.json, or `otherwise` when it is absent; E-CFG-MISSING when both are.
[[nodiscard]] std::int64_t read_size(const ConfigFields& fields, std::string_view key,
                                     std::int64_t max, std::optional<std::int64_t> otherwise);

// hidden_size, layers, heads, vocab_size, max_positions, embed_dim; as many KV heads as heads.
void read_common_sizes(const ConfigFields& fields, const SizeFields& names, ModelConfig& config);

// kv_heads from num_key_value_heads. A missing field means as many as query heads, unless
// `required` (families whose own default differs).
void read_kv_heads(const ConfigFields& fields, bool required, ModelConfig& config);

// head_dim as given (`otherwise` when absent), or hidden_size / heads, which must divide.
void read_head_dim(const ConfigFields& fields, std::optional<std::int64_t> otherwise,
                   ModelConfig& config);

// head_dim of families whose heads together are as wide as the hidden state.
void read_even_head_dim(const ConfigFields& fields, ModelConfig& config);

// Biases of queries, keys and values, of the attention's output and of the MLP.
void set_biases(bool bias, ModelConfig& config);

// The window of every layer; 0: none.
void set_window(std::int64_t window, ModelConfig& config);

// 0: no window. transformers' own default for a missing field is 4096; null means none.
[[nodiscard]] std::int64_t sliding_window(const ConfigFields& fields);

// Windows of the layers that layer_types names, or of those that slide where it is missing.
// `switch_key`: the field that gives no window, where layer_types asks for one.
void read_windows(const ConfigFields& fields, std::int64_t window, std::string_view switch_key,
                  const std::function<bool(std::int64_t)>& slides_otherwise, ModelConfig& config);

// read_windows() where each `pattern`-th layer has none, and all others have one.
void read_window_pattern(const ConfigFields& fields, std::int64_t window, std::int64_t pattern,
                         ModelConfig& config);

// Rotary positions only in layers with a window.
void rotate_in_windows(ModelConfig& config);

// A positive number; E-CFG-NORM otherwise.
[[nodiscard]] double read_norm_eps(const ConfigFields& fields, std::string_view key,
                                   double otherwise);

// E-CFG-ACT for names that are not computed.
[[nodiscard]] Activation read_activation(const ConfigFields& fields, std::string_view key,
                                         Activation otherwise);

}  // namespace triphase
