// FlexGen's exact top-k: softmax over all keys, the k previous tokens of the largest weight (summed
// over the KV head's query heads) and the current one; weights are not renormalized.

#include <algorithm>

#include "models/attention/methods.h"
#include "scheduler/attention/token_choice.h"

namespace triphase {
namespace {

class Topk final : public AttentionMethod {
 public:
  using AttentionMethod::AttentionMethod;

  [[nodiscard]] Timing timing(std::int64_t) const override { return Timing::kLate; }
  [[nodiscard]] std::int64_t lists() const override { return shape_.kv_heads; }

  void choose(State&, const LayerCall& call, ConstMatrix q, std::int64_t row,
              TokenChoice& choice) override {
    const std::int64_t context = call.keys.context_tokens;
    const std::int64_t budget = budget_tokens(options_, context, context);
    choice.clear();
    choice.dense = is_dense(budget, context);
    if (choice.dense) return;
    probabilities_.resize(static_cast<std::size_t>(shape_.heads * context));
    call.ops->score_keys(q, row, shape_.heads, call.cache, call.keys, call.scale,
                         probabilities_.data(), context, call.workspace, *call.stream);
    choice.alpha.resize(static_cast<std::size_t>(shape_.heads));
    const IndexRange current{context - 1, context};
    for (std::int64_t list = 0; list < lists(); ++list) {
      scores_.assign(static_cast<std::size_t>(context), 0.0F);
      for (std::int64_t i = list * shape_.group(); i < (list + 1) * shape_.group(); ++i) {
        const float* weights = probabilities_.data() + i * context;
        for (std::int64_t t = 0; t < context; ++t) {
          scores_[static_cast<std::size_t>(t)] += weights[t];
        }
      }
      const std::size_t begin = choice.tokens.size();
      choose_top(scores_, budget - 1, {&current, 1}, scratch_, choice.tokens);
      choice.begins.push_back(static_cast<std::int32_t>(choice.tokens.size()));
      for (std::int64_t i = list * shape_.group(); i < (list + 1) * shape_.group(); ++i) {
        float alpha = 0;
        for (std::size_t at = begin; at < choice.tokens.size(); ++at) {
          alpha += probabilities_[static_cast<std::size_t>(i * context + choice.tokens[at])];
        }
        choice.alpha[static_cast<std::size_t>(i)] = alpha;
      }
    }
  }

 private:
  std::vector<float> probabilities_;
  std::vector<float> scores_;
  std::vector<std::uint32_t> scratch_;
};

}  // namespace

std::unique_ptr<AttentionMethod> make_topk(const AttentionOptions& options,
                                           const MethodShape& shape, const ContextClusters*) {
  return std::make_unique<Topk>(options, shape);
}

}  // namespace triphase
