// Heavy-hitter oracle (H2O): every list keeps its most recent tokens and those of the largest
// accumulated weight (summed over its query heads, the prompt's rows included); what it lets go is
// gone for good.

#include <algorithm>

#include "kernels/token_choice.h"
#include "models/attention/methods.h"

namespace triphase {
namespace {

struct H2oState final : AttentionMethod::State {
  // Of one KV head.
  struct List {
    std::vector<std::int32_t> tokens;  // kept, ascending
    std::vector<float> sums;           // of their weights
  };
  [[nodiscard]] std::uint64_t bytes() const override {
    std::uint64_t sum = 0;
    for (const List& list : lists) sum += 4 * (list.tokens.size() + list.sums.size());
    return sum;
  }

  std::int64_t prompt_tokens = 0;
  std::vector<List> lists;  // [layer][list]
};

class H2o final : public AttentionMethod {
 public:
  using AttentionMethod::AttentionMethod;

  [[nodiscard]] Timing timing(std::int64_t) const override { return Timing::kEarly; }
  [[nodiscard]] std::int64_t lists() const override { return shape_.kv_heads; }
  [[nodiscard]] bool wants_weights() const override { return true; }
  [[nodiscard]] std::int64_t prefill_rows(std::int64_t prompt_tokens) const override {
    return prompt_tokens;
  }

  [[nodiscard]] std::unique_ptr<State> begin(std::int64_t prompt_tokens,
                                             std::int64_t) const override {
    auto state = std::make_unique<H2oState>();
    state->prompt_tokens = prompt_tokens;
    state->lists.resize(static_cast<std::size_t>(shape_.layers * lists()));
    return state;
  }

  void prefilled(State& state, const LayerCall& call, ConstMatrix q) override {
    auto& own = static_cast<H2oState&>(state);
    const std::int64_t context = call.keys.context_tokens;
    sums_.assign(static_cast<std::size_t>(lists() * context), 0.0F);
    for (std::int64_t i = 0; i < lists(); ++i) {
      const std::vector<float>& old = list_of(own, call, i).sums;
      std::copy(old.begin(), old.end(), sums_.begin() + i * context);
    }
    call.ops->accumulate_columns(q, shape_.heads, call.cache, call.keys, 0, call.scale,
                                 sums_.data(), context, call.workspace, *call.stream);
    for (std::int64_t i = 0; i < lists(); ++i) {
      H2oState::List& kept = list_of(own, call, i);
      kept.sums.assign(sums_.begin() + i * context, sums_.begin() + (i + 1) * context);
      kept.tokens.clear();
      choose_range({0, context}, kept.tokens);
    }
  }

  // Sums are over the query heads; their mean ranks alike.
  void choose(State& state, const LayerCall& call, ConstMatrix, std::int64_t,
              TokenChoice& choice) override {
    auto& own = static_cast<H2oState&>(state);
    choice.clear();
    const std::int64_t context = call.keys.context_tokens;
    const std::int64_t budget = budget_tokens(options_, context, own.prompt_tokens);
    const std::int64_t recent = context - share_of_tokens(options_.h2o.local, budget - 1) - 1;
    for (std::int64_t i = 0; i < lists(); ++i) {
      H2oState::List& kept = list_of(own, call, i);
      while (kept.tokens.empty() || kept.tokens.back() < context - 1) {
        kept.tokens.push_back(kept.tokens.empty() ? 0 : kept.tokens.back() + 1);
        kept.sums.push_back(0.0F);
      }
      keep(budget, recent, kept);
      choice.tokens.insert(choice.tokens.end(), kept.tokens.begin(), kept.tokens.end());
      choice.begins.push_back(static_cast<std::int32_t>(choice.tokens.size()));
    }
  }

  void attended(State& state, const LayerCall& call, const TokenChoice& choice,
                std::span<const float> weights) override {
    auto& own = static_cast<H2oState&>(state);
    for (std::int64_t i = 0; i < lists(); ++i) {
      H2oState::List& kept = list_of(own, call, i);
      const float* added = weights.data() + choice.begins[static_cast<std::size_t>(i)];
      for (std::size_t k = 0; k < kept.tokens.size(); ++k) kept.sums[k] += added[k];
    }
  }

 private:
  // Leaves `count` tokens: all from position `recent` on, and of the others the best.
  void keep(std::int64_t count, std::int64_t recent, H2oState::List& kept) {
    const auto first =
        std::lower_bound(kept.tokens.begin(), kept.tokens.end(), static_cast<std::int32_t>(recent));
    const IndexRange forced{first - kept.tokens.begin(),
                            static_cast<std::int64_t>(kept.tokens.size())};
    chosen_.clear();
    choose_top(kept.sums, std::max<std::int64_t>(0, count - (forced.end - forced.begin)),
               {&forced, 1}, scratch_, chosen_);
    for (std::size_t i = 0; i < chosen_.size(); ++i) {
      kept.tokens[i] = kept.tokens[static_cast<std::size_t>(chosen_[i])];
      kept.sums[i] = kept.sums[static_cast<std::size_t>(chosen_[i])];
    }
    kept.tokens.resize(chosen_.size());
    kept.sums.resize(chosen_.size());
  }

  H2oState::List& list_of(H2oState& state, const LayerCall& call, std::int64_t index) const {
    return state.lists[static_cast<std::size_t>(call.layer * lists() + index)];
  }

  std::vector<float> sums_;
  std::vector<std::int32_t> chosen_;
  std::vector<std::uint32_t> scratch_;
};

}  // namespace

std::unique_ptr<AttentionMethod> make_h2o(const AttentionOptions& options, const MethodShape& shape,
                                          const ContextClusters*) {
  return std::make_unique<H2o>(options, shape);
}

}  // namespace triphase
