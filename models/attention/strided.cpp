// strided: every p-th token and, after Child et al., the last p; the current token always. p: the
// smallest that keeps the budget.

#include <algorithm>

#include "models/attention/formula.h"

namespace triphase {
namespace {

TokenRanges strides_and_window(const AttentionOptions& options, std::int64_t context,
                               std::int64_t budget) {
  const auto local_begin = [&](std::int64_t stride) {
    const std::int64_t local = options.strided.local ? stride : 1;
    return std::max<std::int64_t>(0, context - local);
  };
  const auto count = [&](std::int64_t stride) {
    return (local_begin(stride) + stride - 1) / stride + context - local_begin(stride);
  };
  std::int64_t stride = options.strided.stride;
  if (stride == 0 && !options.strided.local) {
    const std::int64_t others = std::max<std::int64_t>(1, budget - 1);
    stride = std::max<std::int64_t>(1, (context - 1 + others - 1) / others);
  } else if (stride == 0) {
    stride = 1;
    // Beyond sqrt(context) the local part outgrows what a wider stride saves.
    std::int64_t best = 1;
    while (count(stride) > budget && stride * stride <= 4 * context) {
      ++stride;
      if (count(stride) < count(best)) best = stride;
    }
    if (count(stride) > budget) stride = best;
  }
  const std::int64_t local = local_begin(stride);
  return {{.stride = static_cast<std::int32_t>(stride),
           .count = static_cast<std::int32_t>((local + stride - 1) / stride)},
          token_range(local, context)};
}

}  // namespace

std::unique_ptr<AttentionMethod> make_strided(const AttentionOptions& options,
                                              const MethodShape& shape, const ContextClusters*) {
  return std::make_unique<FormulaMethod>(options, shape, strides_and_window);
}

}  // namespace triphase
