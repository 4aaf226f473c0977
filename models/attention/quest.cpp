// Quest: pages of 16 tokens with channel-wise bounds of their keys; the pages of the largest bound
// on q . k and the newest page are attended exactly. The first layers are dense.

#include <algorithm>

#include "models/attention/device_floats.h"
#include "models/attention/methods.h"

namespace triphase {
namespace {

struct QuestState final : AttentionMethod::State {
  [[nodiscard]] std::uint64_t bytes() const override {
    std::uint64_t sum = 0;
    for (const DeviceFloats& layer : bounds) sum += layer.bytes();
    return sum;
  }
  std::vector<DeviceFloats> bounds;  // by layer, see PageBounds
};

class Quest final : public AttentionMethod {
 public:
  using AttentionMethod::AttentionMethod;

  [[nodiscard]] Timing timing(std::int64_t layer) const override {
    return layer < options_.quest.dense_layers ? Timing::kDense : Timing::kLate;
  }
  [[nodiscard]] std::int64_t lists() const override { return shape_.kv_heads; }
  [[nodiscard]] bool chooses_without_keys() const override { return true; }
  [[nodiscard]] std::int64_t first_key(const State& state, const LayerCall& call) const override {
    const std::int64_t context = call.keys.context_tokens;
    const bool dense = timing(call.layer) == Timing::kDense ||
                       is_dense(budget_tokens(options_, context, context), context);
    return dense ? 0 : first_unbounded(bounds_of(state, call.layer), call);
  }

  // While one layer's bounds grow they are there twice.
  [[nodiscard]] std::uint64_t state_bytes(std::int64_t sequences, std::int64_t tokens,
                                          bool) const override {
    const std::int64_t layers =
        std::max<std::int64_t>(0, shape_.layers - options_.quest.dense_layers);
    if (layers == 0) return 0;
    return static_cast<std::uint64_t>(sequences * layers + 1) *
           DeviceFloats::most_bytes(pages_of(tokens) * page_floats());
  }
  [[nodiscard]] std::unique_ptr<State> begin(std::int64_t, std::int64_t) const override {
    auto state = std::make_unique<QuestState>();
    state->bounds.resize(static_cast<std::size_t>(shape_.layers));
    return state;
  }

  void appended(const Sequences& sequences, const LayerCall& call, ConstMatrix) override {
    if (timing(call.layer) == Timing::kDense) return;
    bounds_.clear();
    for (std::size_t i = 0; i < sequences.states.size(); ++i) {
      LayerCall own = call;
      own.keys = sequences.segments[i];
      DeviceFloats& bounds = bounds_of(*sequences.states[i], call.layer);
      const std::int64_t first = first_unbounded(bounds, own);
      bounds.resize(pages_of(own.keys.context_tokens) * page_floats(), *call.memory, *call.stream);
      bounds_.push_back({bounds.data(), first});
    }
    call.ops->bound_pages(call.cache, sequences.segments, bounds_, options_.quest.page,
                          *call.stream);
  }

  [[nodiscard]] bool chooses_rows() const override { return true; }
  [[nodiscard]] bool attends_all(std::int64_t layer, std::int64_t context) const override {
    return timing(layer) == Timing::kDense ||
           is_dense(budget_tokens(options_, context, context), context);
  }
  // Whole pages, the newest one as long as it is.
  [[nodiscard]] std::int64_t list_tokens(std::int64_t context) const override {
    const std::int64_t page = options_.quest.page;
    return (budget_pages(context) - 1) * page + context - (pages_of(context) - 1) * page;
  }

  [[nodiscard]] Selection choose_rows(const Sequences& sequences, const LayerCall& call,
                                      ConstMatrix q) override {
    choices_.clear();
    for (std::size_t i = 0; i < sequences.states.size(); ++i) {
      choices_.push_back({bounds_of(*sequences.states[i], call.layer).data(),
                          budget_pages(sequences.segments[i].context_tokens)});
    }
    return call.ops->choose_by_pages(q, shape_.heads, shape_.kv_heads, sequences.segments, choices_,
                                     options_.quest.page, *call.stream);
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
  // The first token whose key the bounds lack: of the newest ones; with INT8 also of the block
  // before them, whose keys changed when it closed. A sequence's first call finds all keys
  // unbounded.
  [[nodiscard]] std::int64_t first_unbounded(const DeviceFloats& bounds,
                                             const LayerCall& call) const {
    const std::int64_t known = bounds.size() / page_floats();
    std::int64_t first =
        std::max<std::int64_t>(0, call.keys.context_tokens - call.keys.query_count);
    if (call.cache.quantized() && first > 0) {
      first = (first - 1) / call.cache.page_tokens * call.cache.page_tokens;
    }
    first = std::min(first, known * options_.quest.page);
    // A page is bounded as a whole.
    return first / options_.quest.page * options_.quest.page;
  }
  static DeviceFloats& bounds_of(State& state, std::int64_t layer) {
    return static_cast<QuestState&>(state).bounds[static_cast<std::size_t>(layer)];
  }
  static const DeviceFloats& bounds_of(const State& state, std::int64_t layer) {
    return static_cast<const QuestState&>(state).bounds[static_cast<std::size_t>(layer)];
  }

  // Of a call; kept to reuse their memory.
  std::vector<PageBounds> bounds_;
  std::vector<PageChoice> choices_;
};

}  // namespace

std::unique_ptr<AttentionMethod> make_quest(const AttentionOptions& options,
                                            const MethodShape& shape, const ContextClusters*) {
  return std::make_unique<Quest>(options, shape);
}

}  // namespace triphase
