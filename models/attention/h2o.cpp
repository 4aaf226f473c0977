// Heavy-hitter oracle (H2O) as SparQ's comparison runs it: every KV head keeps the k + 1 tokens of
// the largest accumulated weight (mean over its query heads, the prompt's rows included), of which
// the most recent ones are forced; what is left out is gone for good.

#include <algorithm>

#include "models/attention/methods.h"
#include "scheduler/attention/token_choice.h"

namespace triphase {
namespace {

struct H2oState final : AttentionMethod::State {
  struct Head {
    std::vector<std::int32_t> tokens;  // kept, ascending
    std::vector<float> sums;           // of their weights
  };
  [[nodiscard]] std::uint64_t bytes() const override {
    std::uint64_t sum = 0;
    for (const Head& head : heads) sum += 4 * (head.tokens.size() + head.sums.size());
    return sum;
  }

  std::int64_t prompt_tokens = 0;
  std::vector<Head> heads;  // [layer][kv_head]
};

class H2o final : public AttentionMethod {
 public:
  using AttentionMethod::AttentionMethod;

  [[nodiscard]] Timing timing(std::int64_t) const override { return Timing::kEarly; }
  [[nodiscard]] bool per_kv_head() const override { return true; }
  [[nodiscard]] bool wants_weights() const override { return true; }
  [[nodiscard]] bool drops_tokens() const override { return true; }
  [[nodiscard]] std::int64_t prefill_rows(std::int64_t prompt_tokens) const override {
    return prompt_tokens;
  }

  [[nodiscard]] std::unique_ptr<State> begin(std::int64_t prompt_tokens) const override {
    auto state = std::make_unique<H2oState>();
    state->prompt_tokens = prompt_tokens;
    state->heads.resize(static_cast<std::size_t>(shape_.layers * shape_.kv_heads));
    return state;
  }

  void prefilled(State& state, const LayerCall& call, ConstMatrix q) override {
    auto& own = static_cast<H2oState&>(state);
    const std::int64_t context = call.keys.context_tokens;
    sums_.assign(static_cast<std::size_t>(shape_.kv_heads * context), 0.0F);
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
      const std::vector<float>& old = head_of(own, call, head).sums;
      std::copy(old.begin(), old.end(), sums_.begin() + head * context);
    }
    call.ops->sum_columns(q, shape_.heads, call.cache, call.keys, 0, call.scale, sums_.data(),
                          context, call.workspace, *call.stream);
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
      H2oState::Head& kept = head_of(own, call, head);
      kept.sums.assign(sums_.begin() + head * context, sums_.begin() + (head + 1) * context);
      kept.tokens.clear();
      choose_range({0, context}, kept.tokens);
    }
  }

  // Sums are over the query heads; their mean ranks alike.
  void choose(State& state, const LayerCall& call, ConstMatrix, std::int64_t,
              TokenChoice& choice) override {
    auto& own = static_cast<H2oState&>(state);
    const std::int64_t context = call.keys.context_tokens;
    const std::int64_t budget = budget_tokens(options_, context, own.prompt_tokens);
    choice.clear();
    const auto local = share_of_tokens(options_.h2o.local, budget - 1) + 1;
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
      H2oState::Head& kept = head_of(own, call, head);
      while (kept.tokens.empty() || kept.tokens.back() < context - 1) {
        kept.tokens.push_back(kept.tokens.empty() ? 0 : kept.tokens.back() + 1);
        kept.sums.push_back(0.0F);
      }
      const auto count = static_cast<std::int64_t>(kept.tokens.size());
      const auto recent = std::lower_bound(kept.tokens.begin(), kept.tokens.end(),
                                           static_cast<std::int32_t>(context - local));
      const IndexRange forced{recent - kept.tokens.begin(), count};
      chosen_.clear();
      choose_top(kept.sums, budget - (count - forced.begin), {&forced, 1}, scratch_, chosen_);
      for (std::size_t i = 0; i < chosen_.size(); ++i) {
        kept.tokens[i] = kept.tokens[static_cast<std::size_t>(chosen_[i])];
        kept.sums[i] = kept.sums[static_cast<std::size_t>(chosen_[i])];
      }
      kept.tokens.resize(chosen_.size());
      kept.sums.resize(chosen_.size());
      choice.tokens.insert(choice.tokens.end(), kept.tokens.begin(), kept.tokens.end());
      choice.begins.push_back(static_cast<std::int32_t>(choice.tokens.size()));
    }
  }

  void attended(State& state, const LayerCall& call, const TokenChoice& choice,
                std::span<const float> weights) override {
    auto& own = static_cast<H2oState&>(state);
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
      H2oState::Head& kept = head_of(own, call, head);
      const auto begin = static_cast<std::size_t>(choice.begins[static_cast<std::size_t>(head)]);
      for (std::size_t i = 0; i < kept.sums.size(); ++i) kept.sums[i] += weights[begin + i];
    }
  }

 private:
  H2oState::Head& head_of(H2oState& state, const LayerCall& call, std::int64_t head) const {
    return state.heads[static_cast<std::size_t>(call.layer * shape_.kv_heads + head)];
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
