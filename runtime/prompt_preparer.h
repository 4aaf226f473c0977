#pragma once

// From a parsed line to token ids the model can run: tokenizing, range checks, truncation, and the
// fit into context and memory. Immutable, thread safe.

#include <cstdint>
#include <optional>

#include "models/config/model_config.h"
#include "models/tokenizer/tokenizer.h"
#include "runtime/options/run_options.h"
#include "runtime/request.h"

namespace triphase {

class PromptPreparer {
 public:
  struct Limits {
    std::int64_t context = 0;    // tokens of prompt and completion together
    std::int64_t kv_tokens = 0;  // what the KV budget holds of a single sequence
    Truncate truncate = Truncate::kNone;
    bool no_special = false;
  };

  // `tokenizer` may be null: then lines with text get an error.
  PromptPreparer(const ModelConfig& config, const Tokenizer* tokenizer, const Limits& limits)
      : config_(&config), tokenizer_(tokenizer), limits_(limits) {}

  // Fills request.tokens. Returns why the line cannot run, or nothing.
  [[nodiscard]] std::optional<RecordError> prepare(Request& request) const;

 private:
  [[nodiscard]] std::optional<RecordError> tokenize(Request& request) const;
  [[nodiscard]] std::optional<RecordError> check_ids(const Request& request) const;
  [[nodiscard]] std::optional<RecordError> fit(Request& request) const;
  [[nodiscard]] std::optional<TokenId> bos() const;

  const ModelConfig* config_;
  const Tokenizer* tokenizer_;
  Limits limits_;
};

}  // namespace triphase
