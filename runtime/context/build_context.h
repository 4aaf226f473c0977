#pragma once

// The offline side of a fixed context: its text as tokens, its keys as the model computes them,
// their clusters and thresholds.

#include <string_view>

#include "runtime/context/fixed_context.h"
#include "runtime/engine/loaded_model.h"

namespace triphase {

// How the file of a context is read.
struct ContextForm {
  bool token_ids = false;   // a JSON array of ids instead of text
  bool no_special = false;  // text that looks like a special token is plain text
};

// What stands in front of every text (BOS), then the text's own tokens; token ids are taken as they
// are. Throws ErrorRole::kInput E-IN-FIXED, or E-TOK-NONE without a tokenizer.
[[nodiscard]] std::vector<TokenId> context_tokens(const ModelBundle& model, std::string_view text,
                                                  const ContextForm& form, std::string_view file);

// Prefills the tokens and clusters every layer's keys as soon as they are there, so that the keys
// of one layer are in memory at a time. `loaded`: on a plan for one sequence of this length, with a
// sparse method (any: prompts are dense) and KV that is not INT8, in memory that the host reads
// (the CPU's). Throws E-IN-FIXED where the context is too short, E-NUM-KEYS where its keys are not
// finite.
[[nodiscard]] FixedContext build_fixed_context(std::vector<TokenId> tokens,
                                               const ClusterOptions& options, const RunPlan& plan,
                                               LoadedModel& loaded, const Workplace& place);

}  // namespace triphase
