#pragma once

// A model as a command names it: a Hugging Face directory, or with random weights a config.json or
// the name of a built-in shape. Opening reads configs, headers and the tokenizer, no weights.

#include <memory>
#include <optional>
#include <string>

#include "models/config/model_config.h"
#include "models/files/weight_files.h"
#include "models/tokenizer/tokenizer.h"
#include "models/weights.h"
#include "runtime/base/json.h"
#include "runtime/log.h"
#include "runtime/manifest.h"
#include "runtime/options/run_options.h"

namespace triphase {

struct ModelBundle {
  ModelConfig config;
  std::unique_ptr<WeightFiles> files;    // null: random weights
  std::unique_ptr<Tokenizer> tokenizer;  // null: the model has none
  std::optional<Json> generation_config;
  ModelIdentity identity;
  Notes notes;
  DType weights_dtype = DType::kF16;  // of the matrices; of most of them where files mix types
  std::uint64_t weight_bytes = 0;     // device bytes once loaded
};

// Throws ErrorRole::kModel (E-CFG-*, E-ST-*, E-TOK-*) for anything missing, malformed, unsupported.
[[nodiscard]] ModelBundle open_model(const RunOptions& options);

// Loads or makes the weights into their homes.
[[nodiscard]] std::unique_ptr<ModelWeights> load_model_weights(const ModelBundle& bundle,
                                                               const RunOptions& options,
                                                               const WeightHomes& homes,
                                                               const LoadProgress& progress,
                                                               Log& log);

}  // namespace triphase
