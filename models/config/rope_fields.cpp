#include "models/config/rope_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/config/config_limits.h"

namespace triphase {
namespace {

constexpr std::string_view kTypes = "default, linear, dynamic, yarn, llama3 or longrope";

RopeScaling scaling_type(const ConfigFields& rope) {
  const auto newer = rope.optional_string("rope_type");
  const auto older = rope.optional_string("type");
  if (newer && older && *newer != *older) {
    throw Error(ErrorRole::kModel, "E-CFG-ROPE", rope.path("rope_type"))
        .file(rope.file())
        .found(fmt::format("\"{}\" here and \"{}\" in type", escape_untrusted(*newer),
                           escape_untrusted(*older)))
        .expected("one scaling type");
  }
  const std::string_view key = newer ? "rope_type" : "type";
  const std::string name = newer ? *newer : older.value_or("default");
  if (name == "default") return RopeScaling::kNone;
  if (name == "linear") return RopeScaling::kLinear;
  if (name == "dynamic") return RopeScaling::kDynamic;
  if (name == "yarn") return RopeScaling::kYarn;
  if (name == "llama3") return RopeScaling::kLlama3;
  if (name == "longrope" || name == "su") return RopeScaling::kLong;
  throw rope.error("E-CFG-ROPE", key).expected(kTypes);
}

double positive(const ConfigFields& rope, std::string_view key, std::optional<double> otherwise) {
  std::optional<double> value = rope.optional_number(key);
  if (!value) value = otherwise;
  if (!value || !(*value > 0.0) || !std::isfinite(*value)) {
    throw rope.error("E-CFG-ROPE", key).expected("a number above 0");
  }
  return *value;
}

std::optional<double> optional_positive(const ConfigFields& rope, std::string_view key) {
  if (!rope.has(key)) return std::nullopt;
  return positive(rope, key, std::nullopt);
}

// The one value of a setting that several fields may carry; they must agree.
std::optional<double> agreed(const ConfigFields& fields, const std::optional<ConfigFields>& rope,
                             std::initializer_list<std::string_view> top_keys,
                             std::string_view rope_key) {
  std::optional<double> value;
  std::string where;
  const auto take = [&](const ConfigFields& from, std::string_view key) {
    const std::optional<double> here = optional_positive(from, key);
    if (!here) return;
    if (value && *value != *here) {
      throw from.error("E-CFG-ROPE", key)
          .expected(fmt::format("the value of {}, which is {}", where, json_number(*value)));
    }
    value = here;
    where = from.path(key);
  };
  if (rope) take(*rope, rope_key);
  for (const std::string_view key : top_keys) take(fields, key);
  return value;
}

void read_yarn(const ConfigFields& rope, RopeConfig& result) {
  result.attention_factor = optional_positive(rope, "attention_factor");
  // Published code reads 0 as "not given" for these four.
  const auto or_default = [&](std::string_view key, double otherwise) {
    const double value = rope.optional_number(key).value_or(0.0);
    return value == 0.0 ? otherwise : positive(rope, key, std::nullopt);
  };
  result.beta_fast = or_default("beta_fast", 32.0);
  result.beta_slow = or_default("beta_slow", 1.0);
  if (result.beta_fast < result.beta_slow) {
    throw rope.error("E-CFG-ROPE", "beta_fast")
        .expected(fmt::format("at least beta_slow, which is {}", json_number(result.beta_slow)));
  }
  const double mscale = or_default("mscale", 0.0);
  const double mscale_all_dim = or_default("mscale_all_dim", 0.0);
  if (mscale != 0.0) result.mscale = mscale;
  if (mscale_all_dim != 0.0) result.mscale_all_dim = mscale_all_dim;
  result.yarn_truncate = rope.flag("truncate", true);
}

std::vector<double> read_factors(const ConfigFields& rope, std::string_view key,
                                 std::int64_t pairs) {
  const std::string expected = fmt::format("an array of {} numbers above 0", pairs);
  const Json* value = rope.find(key);
  const JsonArray* list = value == nullptr ? nullptr : value->array();
  if (list == nullptr || std::ssize(*list) != pairs) {
    throw rope.error("E-CFG-ROPE", key).expected(expected);
  }
  std::vector<double> factors;
  for (const Json& each : *list) {
    factors.push_back(each.number().value_or(0.0));
    if (!(factors.back() > 0.0) || !std::isfinite(factors.back())) {
      throw rope.error("E-CFG-ROPE", key).expected(expected);
    }
  }
  return factors;
}

// Configs give the extended length as max_position_embeddings.
void read_long(const ConfigFields& rope, RopeConfig& result, std::int64_t given) {
  result.short_factors = read_factors(rope, "short_factor", result.rotary_dim / 2);
  result.long_factors = read_factors(rope, "long_factor", result.rotary_dim / 2);
  result.attention_factor = optional_positive(rope, "attention_factor");
  if (result.original_max_positions < 2) {
    throw rope.error("E-CFG-ROPE", "original_max_position_embeddings").expected("at least 2");
  }
  result.factor = std::max(1.0, positive(rope, "factor",
                                         static_cast<double>(given) /
                                             static_cast<double>(result.original_max_positions)));
}

// original_max_position_embeddings. As in transformers, the top level wins, but it is no setting of
// layer types.
std::optional<std::int64_t> original_positions(const ConfigFields& fields, const ConfigFields& rope,
                                               const RopeDefaults& defaults) {
  constexpr std::string_view kKey = "original_max_position_embeddings";
  std::optional<std::int64_t> original;
  if (defaults.layer_type.empty()) original = fields.optional_size(kKey, kMaxPositions);
  if (!original) original = defaults.original_positions;
  return original ? original : rope.optional_size(kKey, kMaxPositions);
}

void read_scaling(const ConfigFields& fields, const ConfigFields& rope,
                  const RopeDefaults& defaults, RopeConfig& result, ModelConfig& config) {
  const std::int64_t given = config.max_positions;
  result.original_max_positions = given;
  if (result.scaling != RopeScaling::kLinear && result.scaling != RopeScaling::kDynamic) {
    result.original_max_positions = original_positions(fields, rope, defaults).value_or(given);
  }
  if (result.scaling == RopeScaling::kLong) return read_long(rope, result, given);
  std::optional<double> implied;
  if (result.scaling == RopeScaling::kYarn && result.original_max_positions < given) {
    implied = static_cast<double>(given) / static_cast<double>(result.original_max_positions);
  }
  result.factor = positive(rope, "factor", implied);
  if (result.factor < 1.0) throw rope.error("E-CFG-ROPE", "factor").expected("at least 1");
  if (result.scaling == RopeScaling::kYarn) read_yarn(rope, result);
  if (result.scaling == RopeScaling::kLlama3) {
    result.low_freq_factor = positive(rope, "low_freq_factor", std::nullopt);
    result.high_freq_factor = positive(rope, "high_freq_factor", std::nullopt);
    if (result.high_freq_factor <= result.low_freq_factor) {
      throw rope.error("E-CFG-ROPE", "high_freq_factor")
          .expected(fmt::format("more than low_freq_factor, which is {}",
                                json_number(result.low_freq_factor)));
    }
    return;  // LLaMA 3.1 configs give the extended length as max_position_embeddings
  }
  if (defaults.extended) return;
  const double extended = static_cast<double>(result.original_max_positions) * result.factor;
  const double capped = std::min(extended, static_cast<double>(kMaxPositions));
  config.max_positions = std::max(given, static_cast<std::int64_t>(capped));
}

}  // namespace

std::optional<ConfigFields> rope_settings(const ConfigFields& fields,
                                          const RopeDefaults& defaults) {
  std::optional<ConfigFields> rope = fields.optional_object("rope_scaling");
  if (rope) return rope;
  rope = fields.optional_object("rope_parameters");
  if (rope && !defaults.layer_type.empty()) rope = rope->optional_object(defaults.layer_type);
  return rope;
}

RopeConfig read_rope(const ConfigFields& fields, const RopeDefaults& defaults, ModelConfig& config,
                     Notes& notes) {
  const bool older = fields.has("rope_scaling");
  if (older && fields.has("rope_parameters")) {
    notes.push_back("config: rope_scaling is used, rope_parameters is ignored");
  }
  const std::optional<ConfigFields> rope = rope_settings(fields, defaults);

  const auto refuse = [&](std::string_view code, std::string_view field, std::string_view found,
                          std::string_view expected) {
    throw Error(ErrorRole::kModel, code, field).file(fields.file()).found(found).expected(expected);
  };
  RopeConfig result;
  result.theta = agreed(fields, rope, {defaults.theta_key, "rope_theta"}, "rope_theta")
                     .value_or(defaults.theta);
  if (result.theta <= 1.0) {
    refuse("E-CFG-ROPE", "rope_theta", json_number(result.theta), "more than 1");
  }
  constexpr std::string_view kFraction = "partial_rotary_factor";
  const double fraction =
      agreed(fields, rope, {defaults.fraction_key}, kFraction).value_or(defaults.rotary_fraction);
  if (!defaults.partial && fraction != 1.0) {
    refuse("E-CFG-FEATURE", kFraction, json_number(fraction),
           fmt::format("1 in models of type {}", fields.family()));
  }
  if (fraction > 1.0) refuse("E-CFG-ROPE", kFraction, json_number(fraction), "at most 1");
  result.rotary_dim = static_cast<std::int64_t>(static_cast<double>(config.head_dim) * fraction);
  if (result.rotary_dim < 2 || result.rotary_dim % 2 != 0) {
    refuse("E-CFG-ROPE", "rotary dimension",
           fmt::format("{} of {} channels", result.rotary_dim, config.head_dim),
           "an even number of at least 2");
  }
  if (!rope) return result;
  if (rope->has("mrope_section")) {
    throw rope->error("E-CFG-ROPE", "mrope_section").expected("one rotary position per token");
  }
  if (older && !rope->has("rope_type") && !rope->has("type")) {
    throw rope->error("E-CFG-ROPE", "rope_type").expected(kTypes);
  }
  result.scaling = scaling_type(*rope);
  if (result.scaling == RopeScaling::kNone) return result;
  if (result.scaling == RopeScaling::kDynamic && result.rotary_dim < 4) {
    refuse("E-CFG-ROPE", "rotary dimension", std::to_string(result.rotary_dim),
           "at least 4 with dynamic scaling");
  }
  const std::int64_t before = config.max_positions;
  read_scaling(fields, *rope, defaults, result, config);
  if (config.max_positions != before) {
    notes.push_back(
        fmt::format("config: rope scaling extends the context to {} tokens", config.max_positions));
  }
  return result;
}

RopeConfig read_window_rope(const ConfigFields& fields, std::string_view theta_key, double theta,
                            const ModelConfig& config) {
  RopeConfig result;
  result.rotary_dim = config.head_dim;
  std::optional<ConfigFields> rope = fields.optional_object("rope_parameters");
  if (rope) rope = rope->optional_object("sliding_attention");
  result.theta = agreed(fields, rope, {theta_key}, "rope_theta").value_or(theta);
  if (rope && scaling_type(*rope) != RopeScaling::kNone) {
    throw rope->error("E-CFG-ROPE", "rope_type").expected("default in layers with a window");
  }
  return result;
}

}  // namespace triphase
