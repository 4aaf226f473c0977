// Quest: pages of 16 tokens with channel-wise bounds of their keys; the pages of the largest bound
// on q . k and the newest page are attended exactly. The first layers are dense.

#include <algorithm>

#include "models/attention/device_floats.h"
#include "models/attention/methods.h"
#include "scheduler/attention/token_choice.h"

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
    return dense ? 0 : first_unbounded(static_cast<const QuestState&>(state), call);
  }

  // While one layer's bounds grow they are there twice.
  [[nodiscard]] std::uint64_t state_bytes(std::int64_t sequences,
                                          std::int64_t tokens) const override {
    const std::int64_t layers =
        std::max<std::int64_t>(0, shape_.layers - options_.quest.dense_layers);
    if (layers == 0) return 0;
    return static_cast<std::uint64_t>(sequences * layers + 1) *
           DeviceFloats::most_bytes(pages_of(tokens) * page_floats());
  }
  [[nodiscard]] std::unique_ptr<State> begin(std::int64_t) const override {
    auto state = std::make_unique<QuestState>();
    state->bounds.resize(static_cast<std::size_t>(shape_.layers));
    return state;
  }

  void appended(const Sequences& sequences, const LayerCall& call, ConstMatrix) override {
    if (timing(call.layer) == Timing::kDense) return;
    for (std::size_t i = 0; i < sequences.states.size(); ++i) {
      LayerCall own = call;
      own.keys = sequences.segments[i];
      State& state = *sequences.states[i];
      DeviceFloats& bounds = bounds_of(state, own);
      const std::int64_t first = first_unbounded(static_cast<const QuestState&>(state), own);
      bounds.resize(pages_of(own.keys.context_tokens) * page_floats(), *own.memory, *own.stream);
      own.ops->bound_pages(own.cache, own.keys, first, {bounds.data(), options_.quest.page},
                           *own.stream);
    }
  }

  void choose(State& state, const LayerCall& call, ConstMatrix q, std::int64_t row,
              TokenChoice& choice) override {
    const std::int64_t context = call.keys.context_tokens;
    const std::int64_t pages = pages_of(context);
    const std::int64_t budget =
        std::max<std::int64_t>(1, budget_tokens(options_, context, context) / options_.quest.page);
    const bool all = budget_tokens(options_, context, context) >= context;
    choice.clear();
    choice.dense = timing(call.layer) == Timing::kDense ||
                   is_dense(budget_tokens(options_, context, context), context);
    if (choice.dense) return;
    scores_.resize(static_cast<std::size_t>(lists() * pages));
    call.ops->score_pages(q, row, shape_.heads, shape_.kv_heads,
                          {bounds_of(state, call).data(), options_.quest.page}, pages,
                          scores_.data(), pages, *call.stream);
    // The newest page is always attended and counts in the budget.
    const IndexRange newest{pages - 1, pages};
    const std::int64_t others = (all ? pages : budget) - 1;
    for (std::int64_t list = 0; list < lists(); ++list) {
      chosen_.clear();
      choose_top(std::span(scores_).subspan(static_cast<std::size_t>(list * pages),
                                            static_cast<std::size_t>(pages)),
                 others, {&newest, 1}, scratch_, chosen_);
      for (const std::int32_t page : chosen_) {
        const std::int64_t begin = page * options_.quest.page;
        choose_range({begin, std::min(begin + options_.quest.page, context)}, choice.tokens);
      }
      choice.begins.push_back(static_cast<std::int32_t>(choice.tokens.size()));
    }
  }

 private:
  [[nodiscard]] std::int64_t pages_of(std::int64_t context) const {
    return (context + options_.quest.page - 1) / options_.quest.page;
  }
  [[nodiscard]] std::int64_t page_floats() const { return 2 * shape_.kv_heads * shape_.head_dim; }
  // The first token whose key the bounds lack: of the newest ones; with INT8 also of the block
  // before them, whose keys changed when it closed. A sequence's first call finds all keys
  // unbounded.
  [[nodiscard]] std::int64_t first_unbounded(const QuestState& state, const LayerCall& call) const {
    const DeviceFloats& bounds = state.bounds[static_cast<std::size_t>(call.layer)];
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
  static DeviceFloats& bounds_of(State& state, const LayerCall& call) {
    return static_cast<QuestState&>(state).bounds[static_cast<std::size_t>(call.layer)];
  }

  std::vector<float> scores_;
  std::vector<std::int32_t> chosen_;
  std::vector<std::uint32_t> scratch_;
};

}  // namespace

std::unique_ptr<AttentionMethod> make_quest(const AttentionOptions& options,
                                            const MethodShape& shape, const ContextClusters*) {
  return std::make_unique<Quest>(options, shape);
}

}  // namespace triphase
