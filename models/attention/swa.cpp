// Sparse window attention (ALISA, Algorithm 1): a local window and as many tokens of the largest
// attention sum over the last rows, one set for all heads of a layer.

#include <algorithm>

#include "models/attention/methods.h"
#include "models/attention/weight_history.h"
#include "scheduler/attention/token_choice.h"

namespace triphase {
namespace {

// Longer windows are kept in buckets: an exact ring would hold more than a few percent of the KV.
constexpr std::int64_t kLongestRing = 64;

struct SwaState final : AttentionMethod::State {
  SwaState(std::int64_t layers, std::int64_t prompt, bool exact)
      : prompt_tokens(prompt),
        layers_history(static_cast<std::size_t>(layers), WeightHistory(exact)) {}
  [[nodiscard]] std::uint64_t bytes() const override {
    std::uint64_t sum = 0;
    for (const WeightHistory& history : layers_history) sum += history.bytes();
    return sum;
  }

  std::int64_t prompt_tokens;
  std::vector<WeightHistory> layers_history;
};

class Swa final : public AttentionMethod {
 public:
  using AttentionMethod::AttentionMethod;

  [[nodiscard]] Timing timing(std::int64_t) const override { return Timing::kEarly; }
  [[nodiscard]] bool wants_weights() const override { return true; }
  [[nodiscard]] std::int64_t prefill_rows(std::int64_t prompt_tokens) const override {
    return std::min(prompt_tokens, window_rows(prompt_tokens + 1));
  }

  [[nodiscard]] std::unique_ptr<State> begin(std::int64_t prompt_tokens) const override {
    using History = decltype(options_.swa.history);
    const bool exact =
        options_.swa.history == History::kRing ||
        (options_.swa.history == History::kAuto && window_rows(prompt_tokens + 1) <= kLongestRing);
    return std::make_unique<SwaState>(shape_.layers, prompt_tokens, exact);
  }

  // The dense rows that the first decode step looks back on, recomputed one by one.
  void prefilled(State& state, const LayerCall& call, ConstMatrix q) override {
    auto& own = static_cast<SwaState&>(state);
    const std::int64_t window = window_rows(own.prompt_tokens + 1);
    const std::int64_t first = call.keys.context_tokens - call.keys.query_count;
    for (std::int64_t i = 0; i < call.keys.query_count; ++i) {
      const std::int64_t context = first + i + 1;
      if (context <= own.prompt_tokens - window) continue;
      AttentionSegment row = call.keys;
      row.query_begin += i;
      row.query_count = 1;
      row.context_tokens = context;
      sums_.assign(static_cast<std::size_t>(shape_.kv_heads * context), 0.0F);
      call.ops->accumulate_columns(q, shape_.heads, call.cache, row, 0, call.scale, sums_.data(),
                                   context, call.workspace, *call.stream);
      for (std::int64_t head = 1; head < shape_.kv_heads; ++head) {
        for (std::int64_t t = 0; t < context; ++t) {
          sums_[static_cast<std::size_t>(t)] += sums_[static_cast<std::size_t>(head * context + t)];
        }
      }
      tokens_.clear();
      choose_range({0, context}, tokens_);
      history(own, call).add(tokens_, std::span(sums_).first(static_cast<std::size_t>(context)),
                             window);
    }
  }

  void choose(State& state, const LayerCall& call, ConstMatrix, std::int64_t,
              TokenChoice& choice) override {
    const std::int64_t context = call.keys.context_tokens;
    const std::int64_t half = half_budget(context);
    const std::int64_t local = std::min(context, std::max<std::int64_t>(1, half));
    const std::int64_t total = std::max(
        local, options_.swa.paper_split ? local + half : budget_tokens(options_, context, context));
    choice.clear();
    choice.dense = is_dense(total, context);
    if (choice.dense) return;
    history(static_cast<SwaState&>(state), call).scores(context, sums_);
    const IndexRange window{context - local, context};
    choose_top(sums_, total - local, {&window, 1}, scratch_, choice.tokens);
    choice.begins.push_back(static_cast<std::int32_t>(choice.tokens.size()));
  }

  void attended(State& state, const LayerCall& call, const TokenChoice& choice,
                std::span<const float> weights) override {
    history(static_cast<SwaState&>(state), call)
        .add(choice.tokens, weights, window_rows(call.keys.context_tokens + 1));
  }

 private:
  static WeightHistory& history(SwaState& state, const LayerCall& call) {
    return state.layers_history[static_cast<std::size_t>(call.layer)];
  }
  // k of Algorithm 1, line 1: floor(n r / 2).
  [[nodiscard]] std::int64_t half_budget(std::int64_t context) const {
    return share_of_tokens(options_.swa.caching_ratio / 2.0, context);
  }
  [[nodiscard]] std::int64_t window_rows(std::int64_t context) const {
    return options_.swa.window_rows > 0 ? options_.swa.window_rows
                                        : std::max<std::int64_t>(1, half_budget(context));
  }

  std::vector<float> sums_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::uint32_t> scratch_;
};

}  // namespace

std::unique_ptr<AttentionMethod> make_swa(const AttentionOptions& options, const MethodShape& shape,
                                          const ContextClusters*) {
  return std::make_unique<Swa>(options, shape);
}

}  // namespace triphase
