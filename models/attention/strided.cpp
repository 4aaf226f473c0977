// strided: every p-th token and, after Child et al., the last p; the current token always. p: the
// smallest that keeps the budget.

#include <algorithm>

#include "kernels/token_choice.h"
#include "models/attention/formula.h"

namespace triphase {
namespace {

void choose_by_stride(const AttentionOptions& options, std::int64_t context, std::int64_t budget,
                      std::vector<std::int32_t>& tokens) {
  const auto local_begin = [&](std::int64_t stride) {
    const std::int64_t local = options.strided.local ? stride : 1;
    return std::max<std::int64_t>(0, context - local);
  };
  const auto count = [&](std::int64_t stride) {
    return (local_begin(stride) + stride - 1) / stride + context - local_begin(stride);
  };
  std::int64_t stride = options.strided.stride;
  if (stride == 0) {
    stride = 1;
    // Beyond sqrt(context) the local part outgrows what a wider stride saves.
    std::int64_t best = 1;
    while (count(stride) > budget && stride * stride <= 4 * context) {
      ++stride;
      if (count(stride) < count(best)) best = stride;
    }
    if (count(stride) > budget) stride = best;
  }
  choose_strided(context, stride, local_begin(stride), tokens);
}

}  // namespace

std::unique_ptr<AttentionMethod> make_strided(const AttentionOptions& options,
                                              const MethodShape& shape, const ContextClusters*) {
  return std::make_unique<FormulaMethod>(options, shape, choose_by_stride);
}

}  // namespace triphase
