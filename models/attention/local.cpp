// local: the most recent tokens.

#include "models/attention/formula.h"

namespace triphase {

std::unique_ptr<AttentionMethod> make_local(const AttentionOptions& options,
                                            const MethodShape& shape, const ContextClusters*) {
  return std::make_unique<FormulaMethod>(
      options, shape,
      [](const AttentionOptions&, std::int64_t context, std::int64_t budget) -> TokenRanges {
        return {token_range(context - budget, context), {}};
      });
}

}  // namespace triphase
