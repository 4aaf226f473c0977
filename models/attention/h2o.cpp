// Heavy-hitter oracle (H2O): every list keeps its most recent tokens and those of the largest
// accumulated weight (summed over its query heads, the prompt's rows included); what it lets go is
// gone for good. Lists and sums lie in the device's memory, on every device.

#include <algorithm>

#include "base/error.h"
#include "models/attention/device_floats.h"
#include "models/attention/methods.h"

namespace triphase {
namespace {

struct H2oState final : AttentionMethod::State {
  // What the host knows of the lists, the same in every layer.
  struct Lists {
    std::int64_t count = 0;    // tokens of each list
    std::int64_t context = 0;  // tokens that have been in a list
  };
  H2oState(std::int64_t prompt, std::int64_t longest_context)
      : prompt_tokens(prompt), longest(longest_context) {}
  [[nodiscard]] std::uint64_t bytes() const override { return memory.bytes(); }

  std::int64_t prompt_tokens;
  std::int64_t longest;
  DeviceFloats memory;  // of the lists
  KeptTokens kept;      // once the prompt's first rows have come
  Lists lists;
};

class H2o final : public AttentionMethod {
 public:
  using AttentionMethod::AttentionMethod;

  [[nodiscard]] Timing timing(std::int64_t) const override { return Timing::kEarly; }
  [[nodiscard]] std::int64_t lists() const override { return shape_.kv_heads; }
  [[nodiscard]] bool wants_scores() const override { return true; }
  [[nodiscard]] std::int64_t prefill_rows(std::int64_t prompt_tokens) const override {
    return prompt_tokens;
  }

  // The prompt's tokens have sums until the first row is decoded, so a prompt may need as much as
  // the longest context.
  [[nodiscard]] std::uint64_t state_bytes(std::int64_t sequences,
                                          std::int64_t tokens) const override {
    const std::uint64_t state =
        static_cast<std::uint64_t>(shape_.layers * list_floats(tokens)) * sizeof(float);
    return static_cast<std::uint64_t>(sequences) * state +
           score_bytes(sequences, list_tokens(tokens, tokens));
  }
  [[nodiscard]] std::unique_ptr<State> begin(std::int64_t prompt_tokens,
                                             std::int64_t longest) const override {
    return std::make_unique<H2oState>(prompt_tokens, std::max(prompt_tokens, longest));
  }

  void prefilled(const Sequences& chunks, const LayerCall& call, ConstMatrix q) override {
    columns_.clear();
    for (std::size_t i = 0; i < chunks.states.size(); ++i) {
      auto& own = static_cast<H2oState&>(*chunks.states[i]);
      if (own.kept.tokens == nullptr) make_lists(own, call);
      own.lists.count = own.lists.context = chunks.segments[i].context_tokens;
      TRIPHASE_CHECK(own.lists.count <= own.prompt_tokens, "h2o: rows beyond the prompt");
      columns_.push_back({.segment = chunks.segments[i],
                          .sums = in_layer(own.kept, call.layer).sums,
                          .stride = own.kept.room});
    }
    call.ops->accumulate_columns(q, shape_.heads, call.cache, columns_, call.scale, call.workspace,
                                 *call.stream);
  }

  // No row takes the dense path: later steps need every step's scores.
  [[nodiscard]] bool attends_all(std::int64_t, std::int64_t) const override { return false; }
  [[nodiscard]] std::int64_t list_tokens(std::int64_t context, std::int64_t prompt) const override {
    return std::min(context, budget_tokens(options_, context, prompt));
  }

  [[nodiscard]] std::int64_t layers_ahead() const override { return shape_.layers; }
  [[nodiscard]] Selection choose_ahead(const Sequences& sequences, const LayerCall& call) override {
    choices_.clear();
    for (std::size_t row = 0; row < sequences.states.size(); ++row) {
      State& state = *sequences.states[row];
      choices_.push_back(choice_of(state, lists_of(state), sequences.segments[row].context_tokens));
    }
    return call.ops->keep_heaviest(choices_, shape_.layers, *call.stream);
  }

  void attended(const Sequences& sequences, const LayerCall& call,
                const Selection& selection) override {
    rows_.clear();
    for (std::size_t row = 0; row < sequences.states.size(); ++row) {
      State& state = *sequences.states[row];
      rows_.push_back({kept_of(state), lists_of(state).count, static_cast<std::int64_t>(row)});
    }
    call.ops->add_kept_weights(selection, shape_.heads, rows_, call.layer, call.beside,
                               *call.stream);
  }

  void announce_ahead(const Sequences& choosing, const LayerCall& call) override {
    choices_.clear();
    for (std::size_t row = 0; row < choosing.states.size(); ++row) {
      State& state = *choosing.states[row];
      H2oState::Lists copy = lists_of(state);
      choices_.push_back(choice_of(state, copy, choosing.segments[row].context_tokens));
    }
    static_cast<void>(call.ops->keep_heaviest(choices_, shape_.layers, *call.stream));
  }

  void announce(const Sequences&, const Sequences& choosing, const LayerCall& call, ConstMatrix,
                ConstMatrix) override {
    rows_.clear();
    Selection attended{.rows = std::ssize(choosing.states), .lists = lists()};
    for (std::size_t row = 0; row < choosing.states.size(); ++row) {
      State& state = *choosing.states[row];
      H2oState::Lists copy = lists_of(state);
      static_cast<void>(choice_of(state, copy, choosing.segments[row].context_tokens));
      rows_.push_back({kept_of(state), copy.count, static_cast<std::int64_t>(row)});
      attended.capacity = std::max(attended.capacity, copy.count);
    }
    call.ops->add_kept_weights(attended, shape_.heads, rows_, call.layer, false, *call.stream);
  }

 private:
  // How many numbers one layer's lists take, each with room for so many tokens.
  [[nodiscard]] std::int64_t list_floats(std::int64_t room) const { return 2 * lists() * room; }

  // What the row at position context - 1 keeps; the counts of `lists` are those behind it from now
  // on. Sums are over the query heads; their mean ranks alike.
  [[nodiscard]] KeptRow choice_of(const State& state, H2oState::Lists& lists,
                                  std::int64_t context) const {
    const std::int64_t budget =
        budget_tokens(options_, context, static_cast<const H2oState&>(state).prompt_tokens);
    const KeptRow row{.kept = kept_of(state),
                      .count = lists.count,
                      .added = context - lists.context,
                      .context = context,
                      .local = share_of_tokens(options_.h2o.local, budget - 1) + 1,
                      .total = budget};
    lists.count = tokens_left(row);
    lists.context = context;
    return row;
  }

  void make_lists(H2oState& state, const LayerCall& call) const {
    // A row's own token is there before another one goes.
    const std::int64_t budget = list_tokens(state.longest, state.prompt_tokens);
    const std::int64_t room = std::min(state.longest, std::max(state.prompt_tokens, budget) + 1);
    const std::int64_t floats = list_floats(room);
    state.memory = DeviceFloats(shape_.layers * floats, *call.memory);
    float* sums = state.memory.data();
    state.kept = {.tokens = reinterpret_cast<std::int32_t*>(sums + floats / 2),
                  .sums = sums,
                  .lists = lists(),
                  .room = room,
                  .layer_bytes = floats * std::int64_t{sizeof(float)}};
    std::vector<KeptTokens> views;
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      views.push_back(in_layer(state.kept, layer));
    }
    call.ops->keep_all(views, state.prompt_tokens, *call.stream);
  }

  static const KeptTokens& kept_of(const State& state) {
    return static_cast<const H2oState&>(state).kept;
  }
  static H2oState::Lists& lists_of(State& state) {
    auto& own = static_cast<H2oState&>(state);
    TRIPHASE_CHECK(own.kept.tokens != nullptr, "h2o: a decoded row before the prompt's last");
    return own.lists;
  }

  // Scratch of one call, kept to reuse its memory.
  std::vector<KeptRow> choices_;
  std::vector<KeptWeights> rows_;
  std::vector<PromptColumns> columns_;
};

}  // namespace

std::unique_ptr<AttentionMethod> make_h2o(const AttentionOptions& options, const MethodShape& shape,
                                          const ContextClusters*) {
  return std::make_unique<H2o>(options, shape);
}

}  // namespace triphase
