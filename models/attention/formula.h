#pragma once

// Methods whose tokens are a formula of the context length: known before the query, one list for
// all heads.

#include "models/attention/methods.h"

namespace triphase {

// Appends the tokens of `budget`, less than `context`, that the last token of a context attends.
using TokenFormula = void (*)(const AttentionOptions& options, std::int64_t context,
                              std::int64_t budget, std::vector<std::int32_t>& tokens);

class FormulaMethod final : public AttentionMethod {
 public:
  FormulaMethod(const AttentionOptions& options, const MethodShape& shape, TokenFormula formula)
      : AttentionMethod(options, shape), formula_(formula) {}

  [[nodiscard]] Timing timing(std::int64_t) const override { return Timing::kEarly; }
  void choose(State&, const LayerCall& call, ConstMatrix, std::int64_t,
              TokenChoice& choice) override {
    const std::int64_t context = call.keys.context_tokens;
    const std::int64_t budget = budget_tokens(options_, context, context);
    choice.clear();
    choice.dense = is_dense(budget, context);
    if (choice.dense) return;
    formula_(options_, context, budget, choice.tokens);
    choice.begins.push_back(static_cast<std::int32_t>(choice.tokens.size()));
  }

 private:
  TokenFormula formula_;
};

}  // namespace triphase
