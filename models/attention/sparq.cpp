// SparQ Attention (section 4, appendix B): scores from the query's largest channels, exact
// attention over the best tokens, the mean of V in place of the others.

#include <algorithm>

#include "base/error.h"
#include "models/attention/device_floats.h"
#include "models/attention/methods.h"

namespace triphase {
namespace {

struct SparqState final : AttentionMethod::State {
  explicit SparqState(std::int64_t layers) : tokens(static_cast<std::size_t>(layers), 0) {}
  [[nodiscard]] std::uint64_t bytes() const override { return sums.bytes(); }

  DeviceFloats sums;                 // [layer][kv_head][head_dim]
  std::vector<std::int64_t> tokens;  // by layer: that were summed
};

class Sparq final : public AttentionMethod {
 public:
  Sparq(const AttentionOptions& options, const MethodShape& shape)
      : AttentionMethod(options, shape) {
    using Reallocate = decltype(options.sparq.reallocate);
    reallocates_ = options.sparq.reallocate == Reallocate::kOn ||
                   (options.sparq.reallocate == Reallocate::kAuto && shape.group() == 1);
    rank_ = std::min(options.sparq.rank, shape.head_dim);
    using Temperature = decltype(options.sparq.temperature);
    if (options.sparq.temperature == Temperature::kHeadDim) {
      temperature_ = ChannelTemperature::kHeadDim;
    } else if (options.sparq.temperature == Temperature::kRank) {
      temperature_ = ChannelTemperature::kRank;
    }
  }

  [[nodiscard]] Timing timing(std::int64_t) const override { return Timing::kLate; }
  [[nodiscard]] std::int64_t lists() const override { return shape_.kv_heads; }
  [[nodiscard]] bool needs_every_row() const override { return reallocates_; }
  [[nodiscard]] bool reads_transposed_k() const override { return keeps_transposed_k(options_); }
  [[nodiscard]] bool chooses_without_keys() const override { return keeps_transposed_k(options_); }
  [[nodiscard]] std::int64_t first_key(const State&, const LayerCall& call) const override {
    const std::int64_t context = call.keys.context_tokens;
    return attends_all(call.layer, context) || !keeps_transposed_k(options_) ? 0 : context;
  }

  [[nodiscard]] std::uint64_t state_bytes(std::int64_t sequences,
                                          std::int64_t /*tokens*/) const override {
    if (!reallocates_) return 0;
    return static_cast<std::uint64_t>(sequences) *
           DeviceFloats::most_bytes(shape_.layers * sum_width());
  }
  [[nodiscard]] std::unique_ptr<State> begin(std::int64_t, std::int64_t) const override {
    return std::make_unique<SparqState>(shape_.layers);
  }

  void appended(const Sequences& sequences, const LayerCall& call, ConstMatrix v) override {
    if (!reallocates_) return;
    parts_.clear();
    for (std::size_t i = 0; i < sequences.states.size(); ++i) {
      const AttentionSegment& rows = sequences.segments[i];
      auto& state = static_cast<SparqState&>(*sequences.states[i]);
      if (state.sums.size() == 0) {
        state.sums = DeviceFloats(shape_.layers * sum_width(), *call.memory);
      }
      parts_.push_back(part_of(state, rows, call.layer));
      state.tokens[call.layer] += rows.query_count;
    }
    call.ops->sum_values(v, parts_, call.layer, call.beside, *call.stream);
  }

  [[nodiscard]] Selection choose(const Sequences& sequences, const LayerCall& call,
                                 ConstMatrix q) override {
    // K^T is made only here: blocks that are never scored by channels cost no pass over their keys.
    call.ops->transpose_keys(call.cache, sequences.segments, *call.stream);
    for (std::size_t i = 0; i < sequences.states.size() && reallocates_; ++i) {
      const auto& state = static_cast<const SparqState&>(*sequences.states[i]);
      TRIPHASE_CHECK(state.tokens[call.layer] == sequences.segments[i].context_tokens,
                     "sparq: every row's V must have been appended");
    }
    return choose_by_channels(sequences, call, q);
  }

  void announce(const Sequences& all, const Sequences& choosing, const LayerCall& call,
                ConstMatrix q, ConstMatrix v) override {
    parts_.clear();
    for (std::size_t i = 0; i < all.states.size() && reallocates_; ++i) {
      parts_.push_back(
          part_of(static_cast<const SparqState&>(*all.states[i]), all.segments[i], call.layer));
    }
    call.ops->sum_values(v, parts_, call.layer, call.beside, *call.stream);
    call.ops->transpose_keys(call.cache, choosing.segments, *call.stream);
    static_cast<void>(choose_by_channels(choosing, call, q));
  }

 private:
  [[nodiscard]] std::int64_t sum_width() const { return shape_.kv_heads * shape_.head_dim; }
  [[nodiscard]] std::int64_t layer_bytes() const {
    return sum_width() * std::int64_t{sizeof(float)};
  }
  [[nodiscard]] ValueRows part_of(const SparqState& state, const AttentionSegment& rows,
                                  std::int64_t layer) const {
    return {rows.query_begin, rows.query_count, state.sums.data(), layer_bytes(),
            state.tokens[layer]};
  }

  [[nodiscard]] Selection choose_by_channels(const Sequences& sequences, const LayerCall& call,
                                             ConstMatrix q) {
    choices_.clear();
    means_.clear();
    for (std::size_t i = 0; i < sequences.states.size(); ++i) {
      const std::int64_t context = sequences.segments[i].context_tokens;
      const std::int64_t budget = list_tokens(context, context);
      choices_.push_back(
          {.rank = rank_,
           .tokens = budget,
           .recent = std::min(context, share_of_tokens(options_.sparq.local, budget - 1) + 1),
           .sum_logits = options_.sparq.logit_sum,
           .temperature = temperature_});
      if (!reallocates_) continue;
      const auto& state = static_cast<const SparqState&>(*sequences.states[i]);
      means_.push_back({state.sums.data(), context, layer_bytes()});
    }
    Selection chosen = call.ops->choose_by_channels(q, shape_.heads, call.cache, sequences.segments,
                                                    call.scale.factor, choices_, means_,
                                                    call.workspace, *call.stream);
    chosen.layer = call.layer;
    return chosen;
  }

  bool reallocates_ = false;
  std::int64_t rank_ = 0;
  ChannelTemperature temperature_ = ChannelTemperature::kCoverage;
  // Scratch of one call, kept to reuse its memory.
  std::vector<ValueRows> parts_;
  std::vector<ChannelChoice> choices_;
  std::vector<ValueMean> means_;
};

}  // namespace

std::unique_ptr<AttentionMethod> make_sparq(const AttentionOptions& options,
                                            const MethodShape& shape, const ContextClusters*) {
  return std::make_unique<Sparq>(options, shape);
}

}  // namespace triphase
