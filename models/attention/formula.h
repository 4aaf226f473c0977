#pragma once

// Methods whose tokens are two ranges, a formula of the context length: known before the query, one
// list for all heads.

#include "models/attention/methods.h"

namespace triphase {

// The tokens of `budget`, less than `context`, that the last token of a context attends.
using TokenFormula = TokenRanges (*)(const AttentionOptions& options, std::int64_t context,
                                     std::int64_t budget);

// [begin, end).
[[nodiscard]] inline TokenRange token_range(std::int64_t begin, std::int64_t end) {
  return {static_cast<std::int32_t>(begin), 1, static_cast<std::int32_t>(end - begin)};
}

class FormulaMethod final : public AttentionMethod {
 public:
  FormulaMethod(const AttentionOptions& options, const MethodShape& shape, TokenFormula formula)
      : AttentionMethod(options, shape), formula_(formula) {}

  [[nodiscard]] Timing timing(std::int64_t) const override { return Timing::kEarly; }
  [[nodiscard]] std::int64_t list_tokens(std::int64_t context, std::int64_t) const override {
    return ranges_of(context).tokens();
  }
  [[nodiscard]] Selection choose_ahead(const Sequences& sequences, const LayerCall& call) override {
    rows_.clear();
    for (const AttentionSegment& row : sequences.segments) {
      rows_.push_back(ranges_of(row.context_tokens));
    }
    return call.ops->choose_ranges(rows_, *call.stream);
  }

 private:
  [[nodiscard]] TokenRanges ranges_of(std::int64_t context) const {
    return formula_(options_, context, budget_tokens(options_, context, context));
  }

  TokenFormula formula_;
  std::vector<TokenRanges> rows_;
};

}  // namespace triphase
