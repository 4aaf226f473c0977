// Heavy-hitter oracle (H2O): every list keeps its most recent tokens and those of the largest
// accumulated weight (summed over its query heads, the prompt's rows included); what it lets go is
// gone for good. The variants are told apart in AttentionOptions.

#include <algorithm>

#include "models/attention/methods.h"
#include "scheduler/attention/token_choice.h"

namespace triphase {
namespace {

struct H2oState final : AttentionMethod::State {
  // Of one KV or query head. A kept token that one step leaves out is still kept.
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
  using Variant = decltype(AttentionOptions::h2o.variant);

  [[nodiscard]] Timing timing(std::int64_t) const override { return Timing::kEarly; }
  [[nodiscard]] std::int64_t lists() const override { return lists_by_head(); }
  [[nodiscard]] bool wants_weights() const override { return true; }
  [[nodiscard]] std::int64_t prefill_rows(std::int64_t prompt_tokens) const override {
    return prompt_tokens;
  }

  [[nodiscard]] std::unique_ptr<State> begin(std::int64_t prompt_tokens) const override {
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
    call.ops->sum_columns(q, shape_.heads, scope(), call.cache, call.keys, 0, call.scale,
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
    const Cut cut = cut_of(call.keys.context_tokens, own.prompt_tokens);
    for (std::int64_t i = 0; i < lists(); ++i) {
      H2oState::List& kept = list_of(own, call, i);
      while (kept.tokens.empty() || kept.tokens.back() < call.keys.context_tokens - 1) {
        kept.tokens.push_back(kept.tokens.empty() ? 0 : kept.tokens.back() + 1);
        kept.sums.push_back(0.0F);
      }
      keep(cut, kept);
      for (const std::int32_t token : kept.tokens) {
        if (token != cut.left_out) choice.tokens.push_back(token);
      }
      choice.begins.push_back(static_cast<std::int32_t>(choice.tokens.size()));
    }
  }

  void attended(State& state, const LayerCall& call, const TokenChoice& choice,
                std::span<const float> weights) override {
    auto& own = static_cast<H2oState&>(state);
    for (std::int64_t i = 0; i < lists(); ++i) {
      H2oState::List& kept = list_of(own, call, i);
      auto at = static_cast<std::size_t>(choice.begins[static_cast<std::size_t>(i)]);
      const auto end = static_cast<std::size_t>(choice.begins[static_cast<std::size_t>(i) + 1]);
      for (std::size_t k = 0; k < kept.tokens.size() && at < end; ++k) {
        if (kept.tokens[k] == choice.tokens[at]) kept.sums[k] += weights[at++];
      }
    }
  }

 private:
  // Which of a context's tokens stay: all from `recent` on, and of the others so many that `count`
  // are attended.
  struct Cut {
    std::int64_t count;
    std::int64_t recent;
    std::int64_t left_out;  // stays but is not attended in this step; -1: none
  };
  [[nodiscard]] Cut cut_of(std::int64_t context, std::int64_t prompt) const {
    const std::int64_t count = budget_tokens(options_, context, prompt);
    switch (options_.h2o.variant) {
      case Variant::kMask: {
        const std::int64_t recent = context - std::max<std::int64_t>(1, recent_of(count));
        const bool fits = count >= context;
        return {count, recent, fits ? -1 : recent - 1};
      }
      case Variant::kFlexgen: {
        // What left the recent ones with the step before has its place.
        const std::int64_t entering = context > prompt + 1 ? 1 : 0;
        const std::int64_t recent = std::max<std::int64_t>(1, recent_of(count)) + entering;
        return {count, context - std::min(count, recent), -1};
      }
      default:
        return {count, context - recent_of(count - 1) - 1, -1};
    }
  }
  [[nodiscard]] std::int64_t recent_of(std::int64_t k) const {
    return h2o_recent_tokens(options_, k);
  }

  void keep(const Cut& cut, H2oState::List& kept) {
    const auto place_of = [&](std::int64_t token) {
      return std::lower_bound(kept.tokens.begin(), kept.tokens.end(),
                              static_cast<std::int32_t>(token)) -
             kept.tokens.begin();
    };
    const auto count = static_cast<std::int64_t>(kept.tokens.size());
    const bool waits = cut.left_out >= 0 && cut.left_out < cut.recent;
    const IndexRange forced{place_of(waits ? cut.left_out : cut.recent), count};
    const std::int64_t attended = count - forced.begin - (waits ? 1 : 0);
    chosen_.clear();
    choose_top(kept.sums, std::max<std::int64_t>(0, cut.count - attended), {&forced, 1}, scratch_,
               chosen_);
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

std::unique_ptr<AttentionMethod> make_h2o(const AttentionOptions& options,
                                          const MethodShape& shape) {
  return std::make_unique<H2o>(options, shape);
}

}  // namespace triphase
