// Quest: pages of 16 tokens with channel-wise bounds of their keys; the pages of the largest bound
// on q . k and the newest page are attended exactly. The first layers are dense.

#include <algorithm>

#include "base/error.h"
#include "models/attention/device_floats.h"
#include "models/attention/methods.h"

namespace triphase {
namespace {

struct QuestState final : AttentionMethod::State {
  explicit QuestState(std::int64_t layers, std::int64_t most_pages)
      : pages(most_pages), known(static_cast<std::size_t>(layers), 0) {}
  [[nodiscard]] std::uint64_t bytes() const override { return bounds.bytes(); }

  DeviceFloats bounds;              // [layer that chooses][page], see PageBounds
  std::int64_t pages;               // that the context can grow to
  std::vector<std::int64_t> known;  // by layer: pages with bounds
};

class Quest final : public AttentionMethod {
 public:
  using AttentionMethod::AttentionMethod;

  [[nodiscard]] Timing timing(std::int64_t layer) const override {
    const bool dense = shape_.model_layer(layer) < options_.quest.dense_layers;
    return dense ? Timing::kDense : Timing::kLate;
  }
  [[nodiscard]] std::int64_t lists() const override { return shape_.kv_heads; }
  [[nodiscard]] bool chooses_without_keys() const override { return true; }
  [[nodiscard]] std::int64_t first_key(const State& state, const LayerCall& call) const override {
    const std::int64_t context = call.keys.context_tokens;
    return attends_all(call.layer, context) ? 0
                                            : first_unbounded(known_pages(state, call.layer), call);
  }

  [[nodiscard]] std::uint64_t state_bytes(std::int64_t sequences,
                                          std::int64_t tokens) const override {
    return static_cast<std::uint64_t>(sequences) *
           DeviceFloats::most_bytes(choosing_layers() * pages_of(tokens) * page_floats());
  }
  [[nodiscard]] std::unique_ptr<State> begin(std::int64_t prompt_tokens,
                                             std::int64_t longest) const override {
    return std::make_unique<QuestState>(shape_.layers, pages_of(std::max(prompt_tokens, longest)));
  }

  void appended(const Sequences& sequences, const LayerCall& call, ConstMatrix) override {
    if (timing(call.layer) == Timing::kDense) return;
    bounds_.clear();
    for (std::size_t i = 0; i < sequences.states.size(); ++i) {
      LayerCall own = call;
      own.keys = sequences.segments[i];
      auto& state = static_cast<QuestState&>(*sequences.states[i]);
      if (state.bounds.size() == 0) {
        state.bounds = DeviceFloats(choosing_layers() * state.pages * page_floats(), *call.memory);
      }
      bounds_.push_back(bounds_of(state, own));
      std::int64_t& known = state.known[call.layer];
      known = pages_of(own.keys.context_tokens);
      TRIPHASE_CHECK(known <= state.pages, "quest: a context beyond the longest");
    }
    call.ops->bound_pages(call.cache, sequences.segments, bounds_, options_.quest.page,
                          bounds_layer(call), *call.stream);
  }

  // Tokens of whole pages; the newest page may be partial.
  [[nodiscard]] std::int64_t list_tokens(std::int64_t context, std::int64_t) const override {
    const std::int64_t page = options_.quest.page;
    return (budget_pages(context) - 1) * page + context - (pages_of(context) - 1) * page;
  }

  [[nodiscard]] Selection choose(const Sequences& sequences, const LayerCall& call,
                                 ConstMatrix q) override {
    choices_.clear();
    for (std::size_t i = 0; i < sequences.states.size(); ++i) {
      const auto& state = static_cast<const QuestState&>(*sequences.states[i]);
      choices_.push_back({state.bounds.data(), budget_pages(sequences.segments[i].context_tokens),
                          layer_bytes(state)});
    }
    return call.ops->choose_by_pages(q, shape_.heads, shape_.kv_heads, sequences.segments, choices_,
                                     options_.quest.page, bounds_layer(call), *call.stream);
  }

  void announce(const Sequences& all, const Sequences& choosing, const LayerCall& call,
                ConstMatrix q, ConstMatrix) override {
    bounds_.clear();
    for (std::size_t i = 0; i < all.states.size(); ++i) {
      LayerCall own = call;
      own.keys = all.segments[i];
      bounds_.push_back(bounds_of(static_cast<const QuestState&>(*all.states[i]), own));
    }
    call.ops->bound_pages(call.cache, all.segments, bounds_, options_.quest.page,
                          bounds_layer(call), *call.stream);
    static_cast<void>(choose(choosing, call, q));
  }

 private:
  [[nodiscard]] std::int64_t pages_of(std::int64_t context) const {
    return (context + options_.quest.page - 1) / options_.quest.page;
  }
  // The newest page is always attended and counts in the budget.
  [[nodiscard]] std::int64_t budget_pages(std::int64_t context) const {
    const std::int64_t budget = budget_tokens(options_, context, context);
    return budget >= context ? pages_of(context)
                             : std::max<std::int64_t>(1, budget / options_.quest.page);
  }
  [[nodiscard]] std::int64_t page_floats() const { return 2 * shape_.kv_heads * shape_.head_dim; }
  // The first token whose key the bounds lack. These are the newest tokens; with INT8 also the
  // block before them, whose keys changed when it filled up. A sequence's first call finds all keys
  // unbounded.
  [[nodiscard]] std::int64_t first_unbounded(std::int64_t known, const LayerCall& call) const {
    std::int64_t first =
        std::max<std::int64_t>(0, call.keys.context_tokens - call.keys.query_count);
    if (call.cache.quantized() && first > 0) {
      first = (first - 1) / call.cache.page_tokens * call.cache.page_tokens;
    }
    first = std::min(first, known * options_.quest.page);
    // A page is bounded as a whole.
    return first / options_.quest.page * options_.quest.page;
  }
  // Where the bounds of a sequence's new keys go.
  [[nodiscard]] PageBounds bounds_of(const QuestState& state, const LayerCall& call) const {
    return {state.bounds.data(), first_unbounded(known_pages(state, call.layer), call),
            layer_bytes(state)};
  }
  static std::int64_t known_pages(const State& state, std::int64_t layer) {
    return static_cast<const QuestState&>(state).known[layer];
  }
  [[nodiscard]] std::int64_t dense_layers() const {
    std::int64_t layer = 0;
    while (layer < shape_.layers && timing(layer) == Timing::kDense) ++layer;
    return layer;
  }
  [[nodiscard]] std::int64_t choosing_layers() const { return shape_.layers - dense_layers(); }
  // The first layer that chooses has the first bounds.
  [[nodiscard]] std::int64_t bounds_layer(const LayerCall& call) const {
    return call.layer - dense_layers();
  }
  [[nodiscard]] std::int64_t layer_bytes(const QuestState& state) const {
    return state.pages * page_floats() * std::int64_t{sizeof(float)};
  }

  // Scratch of one call, kept to reuse its memory.
  std::vector<PageBounds> bounds_;
  std::vector<PageChoice> choices_;
};

}  // namespace

std::unique_ptr<AttentionMethod> make_quest(const AttentionOptions& options,
                                            const MethodShape& shape, const ContextClusters*) {
  return std::make_unique<Quest>(options, shape);
}

}  // namespace triphase
