#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "models/config/config_limits.h"
#include "models/config/families.h"

namespace triphase {

std::span<const Family> families() {
  static const std::vector<Family> kFamilies = [] {
    std::vector<Family> all = layer_norm_families();
    std::ranges::move(rms_norm_families(), std::back_inserter(all));
    std::ranges::sort(all, {}, &Family::model_type);
    return all;
  }();
  return kFamilies;
}

std::int64_t read_size(const ConfigFields& fields, std::string_view key, std::int64_t max,
                       std::optional<std::int64_t> otherwise) {
  return otherwise && !fields.has(key) ? *otherwise : fields.size(key, max);
}

void read_common_sizes(const ConfigFields& fields, const SizeFields& names, ModelConfig& config) {
  config.hidden_size = read_size(fields, names.hidden, kMaxHidden, names.default_hidden);
  config.layers = read_size(fields, names.layers, kMaxLayers, names.default_layers);
  config.heads = read_size(fields, names.heads, kMaxHeads, names.default_heads);
  config.vocab_size = read_size(fields, "vocab_size", kMaxVocab, names.default_vocab);
  config.max_positions = read_size(fields, names.positions, kMaxPositions, names.default_positions);
  config.embed_dim = config.hidden_size;
  config.kv_heads = config.heads;
}

void read_kv_heads(const ConfigFields& fields, bool required, ModelConfig& config) {
  constexpr std::string_view kKey = "num_key_value_heads";
  if (fields.count(kKey, kMaxHeads, 1) == 0) {
    throw fields.error("E-CFG-HEADS", kKey).expected("at least 1");
  }
  if (!fields.present(kKey) && required) {
    throw fields.error("E-CFG-MISSING", kKey)
        .expected(fmt::format("an integer: models of type {} need it", fields.family()));
  }
  config.kv_heads = fields.optional_size(kKey, kMaxHeads).value_or(config.heads);
  if (config.kv_heads > config.heads || config.heads % config.kv_heads != 0) {
    throw fields.error("E-CFG-HEADS", kKey)
        .expected(fmt::format("a divisor of num_attention_heads, which is {}", config.heads));
  }
}

void read_head_dim(const ConfigFields& fields, std::optional<std::int64_t> otherwise,
                   ModelConfig& config) {
  std::optional<std::int64_t> given = fields.optional_size("head_dim", kMaxHeadDim);
  if (!given) given = otherwise;
  if (!given && config.hidden_size % config.heads != 0) {
    throw fields.error("E-CFG-HEADS", "hidden_size")
        .expected(fmt::format("a multiple of num_attention_heads, which is {}", config.heads))
        .hint("give head_dim if this is intended");
  }
  config.head_dim = given.value_or(config.hidden_size / config.heads);
  if (config.head_dim > kMaxHeadDim || config.q_width() > kMaxHidden * 8) {
    throw fields.error("E-CFG-LIMIT", given ? "head_dim" : "hidden_size")
        .expected(fmt::format("at most {} channels in a head and {} in all {} heads", kMaxHeadDim,
                              kMaxHidden * 8, config.heads));
  }
}

void read_even_head_dim(const ConfigFields& fields, ModelConfig& config) {
  read_head_dim(fields, std::nullopt, config);
  if (config.q_width() != config.hidden_size) {
    throw fields.error("E-CFG-HEADS", "head_dim")
        .expected(fmt::format("hidden_size / num_attention_heads = {} / {}", config.hidden_size,
                              config.heads));
  }
}

void set_biases(bool bias, ModelConfig& config) {
  config.attention.qkv_bias = bias;
  config.attention.out_bias = bias;
  config.mlp.bias = bias;
}

void set_window(std::int64_t window, ModelConfig& config) {
  if (window != 0) config.sliding_window.assign(static_cast<std::size_t>(config.layers), window);
}

std::int64_t sliding_window(const ConfigFields& fields) {
  return fields.count("sliding_window", kMaxPositions, fields.present("sliding_window") ? 0 : 4096);
}

void read_windows(const ConfigFields& fields, std::int64_t window, std::string_view switch_key,
                  const std::function<bool(std::int64_t)>& slides_otherwise, ModelConfig& config) {
  const auto layers = static_cast<std::size_t>(config.layers);
  std::vector<std::int64_t> windows(layers, 0);
  if (const Json* types = fields.find("layer_types")) {
    const JsonArray* names = types->array();
    if (names == nullptr || names->size() != layers) {
      throw fields.error("E-CFG-TYPE", "layer_types")
          .expected(fmt::format("an array of {} names, one per layer", config.layers));
    }
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const std::string* name = (*names)[layer].string();
      const bool slides = name != nullptr && *name == "sliding_attention";
      if (!slides && (name == nullptr || *name != "full_attention")) {
        throw fields.element_error("E-CFG-FEATURE", "layer_types", layer, (*names)[layer])
            .expected("full_attention or sliding_attention");
      }
      if (slides && window == 0) {
        throw fields.error("E-CFG-FEATURE", switch_key)
            .expected("a window: layer_types asks for sliding_attention");
      }
      windows[layer] = slides ? window : 0;
    }
  } else {
    for (std::size_t layer = 0; layer < layers; ++layer) {
      if (slides_otherwise(static_cast<std::int64_t>(layer))) windows[layer] = window;
    }
  }
  if (std::any_of(windows.begin(), windows.end(), [](std::int64_t w) { return w != 0; })) {
    config.sliding_window = std::move(windows);
  }
}

void read_window_pattern(const ConfigFields& fields, std::int64_t window, std::int64_t pattern,
                         ModelConfig& config) {
  const auto slides = [pattern](std::int64_t layer) { return (layer + 1) % pattern != 0; };
  read_windows(fields, window, "sliding_window", slides, config);
}

void rotate_in_windows(ModelConfig& config) {
  config.unrotated.resize(static_cast<std::size_t>(config.layers));
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    config.unrotated[layer] = config.window(layer) == 0;
  }
}

double read_norm_eps(const ConfigFields& fields, std::string_view key, double otherwise) {
  const double eps = fields.optional_number(key).value_or(otherwise);
  if (!(eps > 0.0) || eps > 1.0) {
    throw fields.error("E-CFG-NORM", key).expected("a number above 0 and at most 1");
  }
  return eps;
}

Activation read_activation(const ConfigFields& fields, std::string_view key, Activation otherwise) {
  const std::optional<std::string> name = fields.optional_string(key);
  if (!name) return otherwise;
  constexpr std::array<std::pair<std::string_view, Activation>, 9> kNames{{
      {"relu", Activation::kRelu},
      {"gelu", Activation::kGeluErf},
      {"gelu_python", Activation::kGeluErf},
      {"gelu_new", Activation::kGeluTanh},
      {"gelu_fast", Activation::kGeluTanh},  // the same function, its constants factored apart
      {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"gelu_python_tanh", Activation::kGeluTanh},
      {"silu", Activation::kSilu},
      {"swish", Activation::kSilu},
  }};
  for (const auto& [known, activation] : kNames) {
    if (known == *name) return activation;
  }
  throw fields.error("E-CFG-ACT", key).expected("relu, gelu, gelu_new, gelu_pytorch_tanh or silu");
}

}  // namespace triphase
