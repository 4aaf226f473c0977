// dense, local, strided and lm-infinite: index sets that are formulae of the context length.

#include <algorithm>

#include "models/attention/methods.h"
#include "scheduler/attention/token_choice.h"

namespace triphase {
namespace {

class Affine final : public AttentionMethod {
 public:
  using AttentionMethod::AttentionMethod;

  [[nodiscard]] Timing timing(std::int64_t) const override {
    return options_.kind == AttentionKind::kDense ? Timing::kDense : Timing::kEarly;
  }
  void choose(State&, const LayerCall& call, ConstMatrix, std::int64_t,
              TokenChoice& choice) override {
    const std::int64_t context = call.keys.context_tokens;
    const std::int64_t budget = budget_tokens(options_, context, context);
    choice.clear();
    choice.dense = options_.kind == AttentionKind::kDense || is_dense(budget, context);
    if (choice.dense) return;
    switch (options_.kind) {
      case AttentionKind::kStrided:
        choose_stride(context, budget, choice);
        break;
      case AttentionKind::kLmInfinite: {
        const std::int64_t sinks = std::min(options_.lm_infinite.sinks, budget - 1);
        choose_range({0, sinks}, choice.tokens);
        choose_range({context - (budget - sinks), context}, choice.tokens);
        break;
      }
      default:
        choose_range({context - budget, context}, choice.tokens);
        break;
    }
    choice.begins.push_back(static_cast<std::int32_t>(choice.tokens.size()));
  }

 private:
  // Every p-th token and, after Child et al., the last p; the current token always. p: the smallest
  // that keeps the budget.
  void choose_stride(std::int64_t context, std::int64_t budget, TokenChoice& choice) const {
    const auto local_begin = [&](std::int64_t stride) {
      const std::int64_t local = options_.strided.local ? stride : 1;
      return std::max<std::int64_t>(0, context - local);
    };
    const auto count = [&](std::int64_t stride) {
      return (local_begin(stride) + stride - 1) / stride + context - local_begin(stride);
    };
    std::int64_t stride = options_.strided.stride;
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
    choose_strided(context, stride, local_begin(stride), choice.tokens);
  }
};

}  // namespace

std::unique_ptr<AttentionMethod> make_affine(const AttentionOptions& options,
                                             const MethodShape& shape) {
  return std::make_unique<Affine>(options, shape);
}

}  // namespace triphase
