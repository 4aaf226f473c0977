#include "models/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace triphase {
namespace {

std::vector<double> plain_frequencies(double theta, std::int64_t rotary_dim) {
  std::vector<double> result(static_cast<std::size_t>(rotary_dim / 2));
  for (std::size_t pair = 0; pair < result.size(); ++pair) {
    result[pair] =
        std::pow(theta, -2.0 * static_cast<double>(pair) / static_cast<double>(rotary_dim));
  }
  return result;
}

// YaRN's softening of the attention logits (paper section 3.4), as used by published checkpoints.
double yarn_mscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double yarn_attention_factor(const RopeConfig& config) {
  if (config.attention_factor) return *config.attention_factor;
  // Published code treats an mscale of 0 as absent.
  if (config.mscale.value_or(0.0) != 0.0 && config.mscale_all_dim.value_or(0.0) != 0.0) {
    return yarn_mscale(config.factor, *config.mscale) /
           yarn_mscale(config.factor, *config.mscale_all_dim);
  }
  return yarn_mscale(config.factor, 1.0);
}

// Channels that turn more than beta_fast times within the original context keep their frequency,
// those under beta_slow turns are interpolated, a linear ramp lies between (YaRN section 3.2).
void apply_yarn(const RopeConfig& config, double original_max, std::vector<double>& frequencies) {
  const auto dim = static_cast<double>(config.rotary_dim);
  const auto channel_of = [&](double turns) {
    return dim * std::log(original_max / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(config.theta));
  };
  double low = channel_of(config.beta_fast);
  double high = channel_of(config.beta_slow);
  if (config.yarn_truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  for (std::size_t pair = 0; pair < frequencies.size(); ++pair) {
    const double ramp = std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
    frequencies[pair] = frequencies[pair] / config.factor * ramp + frequencies[pair] * (1.0 - ramp);
  }
}

// LLaMA 3.1: long wavelengths are slowed by the factor, short ones kept, a smooth change between.
void apply_llama3(const RopeConfig& config, double original_max, std::vector<double>& frequencies) {
  const double longest = original_max / config.low_freq_factor;
  const double shortest = original_max / config.high_freq_factor;
  for (double& frequency : frequencies) {
    const double wavelength = 2.0 * std::numbers::pi / frequency;
    if (wavelength > longest) {
      frequency /= config.factor;
    } else if (wavelength >= shortest) {
      const double smooth = (original_max / wavelength - config.low_freq_factor) /
                            (config.high_freq_factor - config.low_freq_factor);
      frequency = (1.0 - smooth) * frequency / config.factor + smooth * frequency;
    }
  }
}

// LongRoPE's softening of the attention logits.
double long_attention_factor(const RopeConfig& config, double original_max) {
  if (config.attention_factor) return *config.attention_factor;
  return config.factor <= 1.0 ? 1.0
                              : std::sqrt(1.0 + std::log(config.factor) / std::log(original_max));
}

std::vector<double> divided(std::vector<double> frequencies, std::span<const double> factors) {
  for (std::size_t pair = 0; pair < frequencies.size(); ++pair) frequencies[pair] /= factors[pair];
  return frequencies;
}

}  // namespace

RopeTable::RopeTable(const RopeConfig& config, std::int64_t max_positions)
    : config_(config),
      original_max_(config.original_max_positions > 0 ? config.original_max_positions
                                                      : max_positions),
      base_frequencies_(plain_frequencies(config.theta, config.rotary_dim)) {
  switch (config.scaling) {
    case RopeScaling::kNone:
    case RopeScaling::kDynamic:
      break;
    case RopeScaling::kLinear:
      for (double& frequency : base_frequencies_) frequency /= config.factor;
      break;
    case RopeScaling::kYarn:
      apply_yarn(config, static_cast<double>(original_max_), base_frequencies_);
      attention_factor_ = yarn_attention_factor(config);
      break;
    case RopeScaling::kLlama3:
      apply_llama3(config, static_cast<double>(original_max_), base_frequencies_);
      break;
    case RopeScaling::kLong:
      long_frequencies_ = divided(base_frequencies_, config.long_factors);
      base_frequencies_ = divided(std::move(base_frequencies_), config.short_factors);
      attention_factor_ = long_attention_factor(config, static_cast<double>(original_max_));
      break;
  }
}

std::uint64_t RopeTable::key_for_prompt(std::int64_t prompt_tokens) const {
  if (!config_.follows_length() || prompt_tokens <= original_max_) return 0;
  return config_.scaling == RopeScaling::kLong ? 1 : static_cast<std::uint64_t>(prompt_tokens);
}

std::vector<double> RopeTable::frequencies(std::uint64_t key) const {
  if (key == 0 || !config_.follows_length()) return base_frequencies_;
  if (config_.scaling == RopeScaling::kLong) return long_frequencies_;
  // NTK-aware scaling: the base grows so that the slowest channel covers the longer context.
  const auto dim = static_cast<double>(config_.rotary_dim);
  const double stretch =
      config_.factor * static_cast<double>(key) / static_cast<double>(original_max_) -
      (config_.factor - 1.0);
  return plain_frequencies(config_.theta * std::pow(stretch, dim / (dim - 2.0)),
                           config_.rotary_dim);
}

void RopeTable::fill(std::uint64_t key, std::int64_t position, std::span<float> cos_sin) const {
  std::vector<double> scaled;
  if (key != 0) scaled = frequencies(key);
  const std::vector<double>& used = key == 0 ? base_frequencies_ : scaled;
  for (std::size_t pair = 0; pair < used.size(); ++pair) {
    const double angle = used[pair] * static_cast<double>(position);
    cos_sin[pair] = static_cast<float>(std::cos(angle) * attention_factor_);
    cos_sin[used.size() + pair] = static_cast<float>(std::sin(angle) * attention_factor_);
  }
}

}  // namespace triphase
