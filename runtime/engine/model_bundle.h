#pragma once

// A model as a command names it: a Hugging Face directory, or with random weights a config.json or
// the name of a built-in shape. Opening reads configs, headers and the tokenizer, no weights.

#include <algorithm>
#include <memory>
#include <optional>
#include <span>

#include "base/json.h"
#include "models/config/model_config.h"
#include "models/files/weight_files.h"
#include "models/tokenizer/tokenizer.h"
#include "models/weights/weights.h"
#include "runtime/context/fixed_context.h"
#include "runtime/job/chat_renderer.h"
#include "runtime/job/manifest.h"
#include "runtime/log.h"
#include "runtime/options/run_options.h"
#include "runtime/progress.h"

namespace triphase {

struct ModelBundle {
  ModelConfig config;
  std::unique_ptr<WeightFiles> files;    // null: random weights
  std::unique_ptr<Tokenizer> tokenizer;  // null: the model has none
  std::optional<Json> generation_config;
  std::shared_ptr<ChatRenderer> chats;                // never null
  std::shared_ptr<const FixedContext> fixed_context;  // of --fixed-context; null: none
  ModelIdentity identity;
  Notes notes;
  DType weights_dtype = DType::kF16;  // of the matrices; where files mix types, of most matrices
  std::uint64_t weight_bytes = 0;     // device bytes once loaded
  // Positions that dense attention takes, where config.max_positions is every layer's window; else
  // 0.
  std::int64_t dense_positions = 0;

  // Positions of the longest request.
  [[nodiscard]] std::int64_t most_positions() const {
    return fixed_context ? most_positions_behind_context() : config.max_positions;
  }
  // Those of requests behind a fixed context. Beyond the original context dynamic and long RoPE
  // turn keys otherwise: there requests do not share its keys and clusters.
  [[nodiscard]] std::int64_t most_positions_behind_context() const {
    if (!config.rope || !config.rope->follows_length()) return config.max_positions;
    const std::int64_t original = config.rope->original_max_positions;
    return original > 0 ? std::min(config.max_positions, original) : config.max_positions;
  }
  // Null and nothing without a fixed context.
  [[nodiscard]] const ContextClusters* clusters() const {
    return fixed_context ? &fixed_context->clusters : nullptr;
  }
  [[nodiscard]] std::span<const TokenId> context_tokens() const {
    return fixed_context ? std::span<const TokenId>(fixed_context->tokens)
                         : std::span<const TokenId>();
  }
};

// Throws ErrorRole::kModel (E-CFG-*, E-ST-*, E-TOK-*) for anything missing, malformed, unsupported;
// E-IN-CLUSTERS for a fixed context that cannot be used with it.
[[nodiscard]] ModelBundle open_model(const RunOptions& options);

// Sparse methods choose tokens of whole contexts: where every layer has a sliding window, requests
// are no longer than the shortest. open_model() does this for the options' method.
void keep_within_windows(const AttentionOptions& attention, ModelBundle& bundle);

// Loads or makes the weights into their homes. `config`: the bundle's, or one of fewer layers.
[[nodiscard]] std::unique_ptr<ModelWeights> load_model_weights(const ModelBundle& bundle,
                                                               const ModelConfig& config,
                                                               const RunOptions& options,
                                                               const WeightHomes& homes,
                                                               Progress& progress, Log& log);

}  // namespace triphase
