#include "runtime/job/generation_config.h"

#include <fmt/format.h>

#include <functional>

#include "base/error.h"
#include "runtime/engine/sampling_limits.h"

namespace triphase {
namespace {

constexpr std::int64_t kDefaultTopK = 50;  // of transformers

constexpr std::string_view kFile = "generation_config.json";
constexpr std::string_view kTransformersDefault = "transformers' default";

// What generate() of transformers obeys and nothing here does, and the number with which it does
// nothing.
struct Unread {
  std::string_view key;
  std::optional<double> neutral{};
};
constexpr Unread kUnread[] = {{"bad_words_ids"},
                              {"begin_suppress_tokens"},
                              {"constraints"},
                              {"diversity_penalty", 0.0},
                              {"dola_layers"},
                              {"encoder_no_repeat_ngram_size", 0.0},
                              {"encoder_repetition_penalty", 1.0},
                              {"epsilon_cutoff", 0.0},
                              {"eta_cutoff", 0.0},
                              {"exponential_decay_length_penalty"},
                              {"force_words_ids"},
                              {"forced_bos_token_id"},
                              {"forced_eos_token_id"},
                              {"guidance_scale", 1.0},
                              {"max_length"},
                              {"max_time"},
                              {"min_length", 0.0},
                              {"min_new_tokens", 0.0},
                              {"no_repeat_ngram_size", 0.0},
                              {"num_beams", 1.0},
                              {"num_return_sequences", 1.0},
                              {"penalty_alpha", 0.0},
                              {"sequence_bias"},
                              {"stop_strings"},
                              {"suppress_tokens"},
                              {"token_healing"},
                              {"top_h"},
                              {"typical_p", 1.0},
                              {"watermarking_config"}};

bool says_nothing(const Unread& field, const Json& value) {
  const JsonArray* list = value.array();
  if ((list != nullptr && list->empty()) || value.boolean() == false) return true;
  return field.neutral && value.number() == field.neutral;
}

struct Source {
  RunOptions& options;
  const Json& config;
  std::vector<std::string> taken;

  // `option` is the name without dashes; what the user gave wins.
  void take(const std::string& option, std::string value, const std::function<void()>& set,
            std::string_view origin = kFile) {
    if (options.given(option)) return;
    set();
    taken.push_back(fmt::format("{} {} from {}", option, value, origin));
    options.origins[option] = {std::move(value), std::string(origin)};
  }

  [[noreturn]] void refuse(std::string_view field, const Json& value, std::string_view expected) {
    throw Error(ErrorRole::kModel, "E-CFG-GENERATION", field)
        .file(kFile)
        .found(value.describe())
        .expected(expected)
        .hint("--generation-config=none leaves the file alone");
  }

  const Json* find(std::string_view key) const {
    const Json* value = config.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }

  void take_real(std::string_view key, const std::string& option, double low, double high,
                 double& target) {
    const Json* value = find(key);
    if (value == nullptr) return;
    const std::optional<double> number = value->number();
    if (!number || *number < low || *number > high) {
      refuse(key, *value, fmt::format("a number from {} to {}", low, high));
    }
    take(option, json_number(*number), [&] { target = *number; });
  }

  void take_integer(std::string_view key, const std::string& option, std::int64_t low,
                    std::int64_t high, std::int64_t& target) {
    const Json* value = find(key);
    if (value == nullptr) return;
    const std::optional<std::int64_t> number = value->whole_number();
    if (!number || *number < low || *number > high) {
      refuse(key, *value, fmt::format("an integer from {} to {}", low, high));
    }
    take(option, fmt::to_string(*number), [&] { target = *number; });
  }
};

}  // namespace

std::vector<std::string> adopt_generation_config(RunOptions& options, const Json& config) {
  Source source{options, config, {}};
  SamplingParams& sampling = options.generation.sampling;
  if (!config.is_object()) source.refuse("generation_config", config, "an object");
  const Json* do_sample = source.find("do_sample");
  if (do_sample != nullptr && !do_sample->is_bool()) {
    source.refuse("do_sample", *do_sample, "true or false");
  }
  // transformers decodes greedily unless do_sample is true, whatever the file's temperature says.
  // The user's asks for sampling, as do_sample of a call does there.
  const bool samples = (do_sample != nullptr && *do_sample->boolean()) ||
                       (options.given("temperature") && sampling.temperature > 0.0);
  if (!samples) {
    source.take(
        "temperature", "0", [&] { sampling.temperature = 0.0; },
        do_sample != nullptr ? "do_sample of generation_config.json" : kTransformersDefault);
  } else {
    if (source.find("temperature") == nullptr) {
      source.take(
          "temperature", "1", [&] { sampling.temperature = 1.0; }, kTransformersDefault);
    }
    source.take_real("temperature", "temperature", 0.0, kTemperatureLimit, sampling.temperature);
    source.take_real("top_p", "top-p", 1e-9, 1.0, sampling.top_p);
    if (source.find("top_k") == nullptr) {
      source.take(
          "top-k", fmt::to_string(kDefaultTopK), [&] { sampling.top_k = kDefaultTopK; },
          kTransformersDefault);
    }
    source.take_integer("top_k", "top-k", 0, kTopKLimit, sampling.top_k);
    source.take_real("min_p", "min-p", 0.0, 1.0, sampling.min_p);
  }
  source.take_real("repetition_penalty", "repetition-penalty", kRepetitionPenaltyMin,
                   kRepetitionPenaltyMax, sampling.repetition_penalty);
  source.take_integer("max_new_tokens", "max-tokens", 1, kMaxTokensLimit, sampling.max_tokens);
  for (const Unread& field : kUnread) {
    const Json* value = source.find(field.key);
    if (value == nullptr || says_nothing(field, *value)) continue;
    source.taken.push_back(fmt::format("{} {} of generation_config.json is not supported: ignored",
                                       field.key, value->describe()));
  }
  return source.taken;
}

}  // namespace triphase
