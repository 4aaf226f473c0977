// lm-infinite: the first tokens (attention sinks) and a window of the most recent ones.

#include <algorithm>

#include "kernels/token_choice.h"
#include "models/attention/formula.h"

namespace triphase {
namespace {

void choose_sinks_and_window(const AttentionOptions& options, std::int64_t context,
                             std::int64_t budget, std::vector<std::int32_t>& tokens) {
  const std::int64_t sinks = std::min(options.lm_infinite.sinks, budget - 1);
  choose_range({0, sinks}, tokens);
  choose_range({context - (budget - sinks), context}, tokens);
}

}  // namespace

std::unique_ptr<AttentionMethod> make_lm_infinite(const AttentionOptions& options,
                                                  const MethodShape& shape,
                                                  const ContextClusters*) {
  return std::make_unique<FormulaMethod>(options, shape, choose_sinks_and_window);
}

}  // namespace triphase
