#pragma once

// From a scoring request to token ids: where the context ends, what is scored, and the windows of a
// long text, by the rules of EleutherAI's lm-evaluation-harness (docs/scoring.md), so that scores
// are comparable. Immutable, thread safe.

#include <cstdint>
#include <optional>
#include <vector>

#include "models/config/model_config.h"
#include "models/tokenizer/tokenizer.h"
#include "runtime/job/line_length.h"
#include "runtime/job/request.h"
#include "runtime/options/run_options.h"

namespace triphase {

// One request as work: its windows in the order of the text (one, unless the form is kRolling).
struct PreparedScore {
  std::vector<ScoreTask> tasks;
  std::vector<TokenId> scored;      // the scored tokens of all tasks, in order
  std::int64_t context_tokens = 0;  // that a first window begins with
};

// What the tokenizer puts in front of a text: BOS for LLaMA, nothing for NeoX.
[[nodiscard]] std::vector<TokenId> leading_specials(const Tokenizer& tokenizer);

class ScorePreparer {
 public:
  struct Limits {
    std::int64_t context = 0;    // tokens that go through the model; one more may be scored
    std::int64_t kv_tokens = 0;  // what the KV budget holds of a single sequence
    Truncate truncate = Truncate::kNone;  // kLeft drops the beginning of contexts that do not fit
    bool no_special = false;              // special-token text is plain text
    bool decodes = false;  // scored tokens are decoded, one per step; else prefilled like contexts
    std::string more_room = "raise --device-memory";  // how kv_tokens may become more
    WindowLimit window = {};                          // where it makes `context`
  };

  // `tokenizer` may be null: then requests with text get an error.
  ScorePreparer(const ModelConfig& config, const Tokenizer* tokenizer, const Limits& limits);

  // Returns why the request cannot be scored, or nothing.
  [[nodiscard]] std::optional<RecordError> prepare(const Request& request,
                                                   PreparedScore& prepared) const;

 private:
  using Tokens = std::vector<TokenId>;
  [[nodiscard]] std::optional<RecordError> tokenize(const Request& request, Tokens& context,
                                                    Tokens& scored) const;
  [[nodiscard]] std::optional<RecordError> check_ids(const Tokens& tokens,
                                                     std::string_view field) const;
  [[nodiscard]] std::optional<RecordError> one_task(const Tokens& context,
                                                    PreparedScore& prepared) const;
  // The token before the first scored one predicts it, and so is decoded too.
  [[nodiscard]] std::int64_t prefilled(const ScoreTask& task) const {
    return limits_.decodes ? task.first_scored - 1 : task.computed_tokens();
  }
  void add_windows(TokenId first, PreparedScore& prepared) const;

  const ModelConfig* config_;
  const Tokenizer* tokenizer_;
  Limits limits_;
  Tokens prefix_;                 // what the tokenizer puts in front of every text
  std::optional<TokenId> start_;  // what an empty context becomes: BOS, else EOS
};

}  // namespace triphase
