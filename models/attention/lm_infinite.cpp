// lm-infinite: the first tokens (attention sinks) and a window of the most recent ones.

#include <algorithm>

#include "models/attention/formula.h"

namespace triphase {
namespace {

TokenRanges sinks_and_window(const AttentionOptions& options, std::int64_t context,
                             std::int64_t budget) {
  const std::int64_t sinks = std::min(options.lm_infinite.sinks, budget - 1);
  return {token_range(0, sinks), token_range(context - (budget - sinks), context)};
}

}  // namespace

std::unique_ptr<AttentionMethod> make_lm_infinite(const AttentionOptions& options,
                                                  const MethodShape& shape,
                                                  const ContextClusters*) {
  return std::make_unique<FormulaMethod>(options, shape, sinks_and_window);
}

}  // namespace triphase
