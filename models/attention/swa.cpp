// Sparse window attention (ALISA, Algorithm 1): a local window and as many tokens of the largest
// attention sum over the last rows, one set for all heads of a layer. The sums are in the device's
// memory, of a fixed size, and the host reads nothing.

#include <algorithm>

#include "base/error.h"
#include "models/attention/device_floats.h"
#include "models/attention/methods.h"
#include "models/attention/weight_slots.h"

namespace triphase {
namespace {

// Longer windows are kept in buckets: an exact ring would hold more than a few percent of the KV.
constexpr std::int64_t kLongestRing = 64;

struct SwaState final : AttentionMethod::State {
  SwaState(std::int64_t prompt, std::int64_t longest_context, bool is_exact)
      : prompt_tokens(prompt), longest(longest_context), exact(is_exact) {}
  [[nodiscard]] std::uint64_t bytes() const override { return memory.bytes(); }

  std::int64_t prompt_tokens;
  std::int64_t longest;
  bool exact;
  // Once a row of the prompt came: every layer's sums, and where its rows go.
  DeviceFloats memory;
  WeightWindow window;
  std::vector<WeightSlots> slots;
};

class Swa final : public AttentionMethod {
 public:
  using AttentionMethod::AttentionMethod;

  [[nodiscard]] Timing timing(std::int64_t) const override { return Timing::kEarly; }
  [[nodiscard]] bool wants_scores() const override { return true; }
  [[nodiscard]] std::int64_t prefill_rows(std::int64_t prompt_tokens) const override {
    return std::min(prompt_tokens, window_rows(prompt_tokens + 1));
  }

  [[nodiscard]] std::uint64_t state_bytes(std::int64_t sequences,
                                          std::int64_t tokens) const override {
    // The most of two cases: the longest request whose rows are kept exactly, all of it prompt, and
    // buckets from the first token on. Buckets that begin elsewhere may be one more.
    std::int64_t longest = tokens;
    while (longest > 0 && !is_exact(longest)) --longest;
    std::uint64_t layer = 0;
    if (longest > 0) {
      layer = weight_window_bytes(true, longest, weight_room(true, growth(longest, longest + 1)));
    }
    if (!is_exact(tokens)) {
      const std::int64_t room = weight_room(false, growth(1, tokens)) + 1;
      layer = std::max(layer, weight_window_bytes(false, tokens, room));
    }
    return static_cast<std::uint64_t>(sequences * shape_.layers) * layer +
           score_bytes(sequences, list_tokens(tokens, tokens));
  }
  [[nodiscard]] std::unique_ptr<State> begin(std::int64_t prompt_tokens,
                                             std::int64_t longest) const override {
    const std::int64_t most = std::max(prompt_tokens, longest);
    return std::make_unique<SwaState>(prompt_tokens, most, is_exact(most));
  }

  // The dense rows that the first decode step looks back on.
  void prefilled(const Sequences& chunks, const LayerCall& call, ConstMatrix q) override {
    chunks_.clear();
    steps_.clear();
    for (std::size_t i = 0; i < chunks.states.size(); ++i) {
      auto& own = static_cast<SwaState&>(*chunks.states[i]);
      const std::int64_t window = window_rows(own.prompt_tokens + 1);
      AttentionSegment rows = chunks.segments[i];
      const std::int64_t end = rows.context_tokens;
      const std::int64_t first =
          std::max(end - rows.query_count, std::min(end, own.prompt_tokens - window));
      if (first == end) continue;
      rows.query_begin += rows.query_count - (end - first);
      rows.query_count = end - first;
      if (own.slots.empty()) make_windows(own, call);
      for (std::int64_t row = first; row < end; ++row) {
        steps_.push_back(slots(own, call).add(row + 1, window));
      }
      chunks_.push_back({.segment = rows, .window = in_layer(own.window, call.layer)});
    }
    if (chunks_.empty()) return;
    std::span<const WindowStep> steps = steps_;
    for (PromptWindowRows& chunk : chunks_) {
      const auto count = static_cast<std::size_t>(chunk.segment.query_count);
      chunk.steps = steps.first(count);
      steps = steps.subspan(count);
    }
    call.ops->add_prompt_rows(q, shape_.heads, call.cache, chunks_, call.scale, call.workspace,
                              *call.stream);
  }

  // Rows that attend all are in no sum: only where no later row chooses by sums. The published
  // split has the whole context in every second row at r = 1.
  [[nodiscard]] bool attends_all(std::int64_t, std::int64_t context) const override {
    return !options_.swa.paper_split && is_dense(budget(context).total, context);
  }
  [[nodiscard]] std::int64_t list_tokens(std::int64_t context, std::int64_t) const override {
    return std::min(context, budget(context).total);
  }

  [[nodiscard]] std::int64_t layers_ahead() const override { return shape_.layers; }
  [[nodiscard]] Selection choose_ahead(const Sequences& sequences, const LayerCall& call) override {
    choices_.clear();
    for (std::size_t row = 0; row < sequences.states.size(); ++row) {
      const std::int64_t context = sequences.segments[row].context_tokens;
      const auto [local, total] = budget(context);
      choices_.push_back({.window = window_of(*sequences.states[row]),
                          .context = context,
                          .local = local,
                          .total = total});
    }
    return call.ops->choose_recent_and_heaviest(choices_, shape_.layers, *call.stream);
  }

  void attended(const Sequences& sequences, const LayerCall& call,
                const Selection& selection) override {
    rows_.clear();
    for (std::size_t row = 0; row < sequences.states.size(); ++row) {
      add_row(sequences, row, slots(*sequences.states[row], call));
    }
    call.ops->add_weights(selection, shape_.heads, rows_, call.layer, call.beside, *call.stream);
  }

  void announce(const Sequences&, const Sequences& choosing, const LayerCall& call, ConstMatrix,
                ConstMatrix) override {
    rows_.clear();
    Selection attended{.rows = std::ssize(choosing.states)};
    for (std::size_t row = 0; row < choosing.states.size(); ++row) {
      WeightSlots copy = slots(*choosing.states[row], call);
      add_row(choosing, row, copy);
      attended.capacity = std::max(attended.capacity, rows_.back().step.count);
    }
    call.ops->add_weights(attended, shape_.heads, rows_, call.layer, false, *call.stream);
  }

 private:
  // How many tokens are attended: the newest ones, and in total. `total` may exceed the context.
  struct Budget {
    std::int64_t local = 0;
    std::int64_t total = 0;
  };
  [[nodiscard]] Budget budget(std::int64_t context) const {
    const std::int64_t half = half_budget(context);
    const std::int64_t local = std::min(context, std::max<std::int64_t>(1, half));
    const std::int64_t total =
        options_.swa.paper_split ? local + half : budget_tokens(options_, context, context);
    return {local, std::max(local, total)};
  }
  // Of a request of at most so many tokens, prompt and completion: the ring's rows and their tokens
  // both grow with it.
  [[nodiscard]] bool is_exact(std::int64_t longest) const {
    using History = decltype(options_.swa.history);
    return options_.swa.history == History::kRing ||
           (options_.swa.history == History::kAuto && window_rows(longest) <= kLongestRing);
  }
  [[nodiscard]] WindowGrowth growth(std::int64_t prompt, std::int64_t longest) const {
    return {
        .prompt_tokens = prompt,
        .longest = longest,
        .window_rows = [this](std::int64_t context) { return window_rows(context); },
        .chosen_tokens = [this](std::int64_t context) { return list_tokens(context, context); }};
  }

  void make_windows(SwaState& state, const LayerCall& call) const {
    const std::int64_t room = weight_room(state.exact, growth(state.prompt_tokens, state.longest));
    const std::uint64_t bytes = weight_window_bytes(state.exact, state.longest, room);
    const auto floats = static_cast<std::int64_t>(bytes / sizeof(float));
    state.memory = DeviceFloats(shape_.layers * floats, *call.memory);
    state.window = weight_window_at(state.memory.data(), state.exact, state.longest, room);
    state.window.layer_bytes = static_cast<std::int64_t>(bytes);
    std::vector<WeightWindow> views;
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      views.push_back(in_layer(state.window, layer));
      state.slots.emplace_back(state.exact, room);
    }
    call.ops->clear_weights(views, *call.stream);
  }

  // Adds to rows_ what sequence `row` adds to its window.
  void add_row(const Sequences& sequences, std::size_t row, WeightSlots& slots) {
    const std::int64_t context = sequences.segments[row].context_tokens;
    rows_.push_back({.window = window_of(*sequences.states[row]),
                     .step = slots.add(list_tokens(context, context), window_rows(context + 1)),
                     .context = context,
                     .attended = static_cast<std::int64_t>(row)});
  }

  static const WeightWindow& window_of(const State& state) {
    return static_cast<const SwaState&>(state).window;
  }
  static WeightSlots& slots(State& state, const LayerCall& call) {
    auto& slots = static_cast<SwaState&>(state).slots;
    TRIPHASE_CHECK(!slots.empty(), "swa: a decoded row before the prompt's last");
    return slots[call.layer];
  }
  // k of Algorithm 1, line 1: floor(n r / 2).
  [[nodiscard]] std::int64_t half_budget(std::int64_t context) const {
    return share_of_tokens(options_.swa.caching_ratio / 2.0, context);
  }
  [[nodiscard]] std::int64_t window_rows(std::int64_t context) const {
    return options_.swa.window_rows > 0 ? options_.swa.window_rows
                                        : std::max<std::int64_t>(1, half_budget(context));
  }

  std::vector<WindowChoice> choices_;
  std::vector<WeightRow> rows_;
  std::vector<WindowStep> steps_;
  std::vector<PromptWindowRows> chunks_;
};

}  // namespace

std::unique_ptr<AttentionMethod> make_swa(const AttentionOptions& options, const MethodShape& shape,
                                          const ContextClusters*) {
  return std::make_unique<Swa>(options, shape);
}

}  // namespace triphase
