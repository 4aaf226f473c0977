// FlexGen's exact top-k: softmax over all keys, the k previous tokens of the largest weight (summed
// over the KV head's query heads) and the current one; weights are not renormalized.

#include <vector>

#include "models/attention/methods.h"

namespace triphase {
namespace {

class Topk final : public AttentionMethod {
 public:
  using AttentionMethod::AttentionMethod;

  [[nodiscard]] Timing timing(std::int64_t) const override { return Timing::kLate; }
  [[nodiscard]] std::int64_t lists() const override { return shape_.kv_heads; }

  [[nodiscard]] Selection choose(const Sequences& sequences, const LayerCall& call,
                                 ConstMatrix q) override {
    budgets_.clear();
    for (const AttentionSegment& row : sequences.segments) {
      budgets_.push_back(list_tokens(row.context_tokens, row.context_tokens));
    }
    return call.ops->choose_by_keys(q, shape_.heads, call.cache, sequences.segments,
                                    call.scale.factor, budgets_, call.workspace, *call.stream);
  }

 private:
  // Scratch of one call, kept to reuse its memory.
  std::vector<std::int64_t> budgets_;
};

}  // namespace

std::unique_ptr<AttentionMethod> make_topk(const AttentionOptions& options,
                                           const MethodShape& shape, const ContextClusters*) {
  return std::make_unique<Topk>(options, shape);
}

}  // namespace triphase
