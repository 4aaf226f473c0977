// SparQ Attention (section 4, appendix B): scores from the query's largest channels, exact
// attention over the best tokens, the mean of V in place of the others.

#include <algorithm>

#include "base/error.h"
#include "models/attention/device_floats.h"
#include "models/attention/methods.h"

namespace triphase {
namespace {

struct SparqState final : AttentionMethod::State {
  struct Sum {
    DeviceFloats values;  // [kv_head][head_dim]
    std::int64_t tokens = 0;
  };
  [[nodiscard]] std::uint64_t bytes() const override {
    std::uint64_t sum = 0;
    for (const Sum& layer : sums) sum += layer.values.bytes();
    return sum;
  }
  std::vector<Sum> sums;  // by layer
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
    const bool dense = is_dense(budget_tokens(options_, context, context), context);
    return dense || !keeps_transposed_k(options_) ? 0 : context;
  }

  [[nodiscard]] std::uint64_t state_bytes(std::int64_t sequences,
                                          std::int64_t /*tokens*/) const override {
    if (!reallocates_) return 0;
    return static_cast<std::uint64_t>(sequences * shape_.layers) *
           DeviceFloats::most_bytes(shape_.kv_heads * shape_.head_dim);
  }
  [[nodiscard]] std::unique_ptr<State> begin(std::int64_t) const override {
    auto state = std::make_unique<SparqState>();
    state->sums.resize(static_cast<std::size_t>(shape_.layers));
    return state;
  }

  void appended(State& state, const LayerCall& call, ConstMatrix v) override {
    if (!reallocates_) return;
    SparqState::Sum& sum =
        static_cast<SparqState&>(state).sums[static_cast<std::size_t>(call.layer)];
    if (sum.values.size() == 0) {
      sum.values.assign(std::vector<float>(static_cast<std::size_t>(v.cols)), *call.memory,
                        *call.stream);
    }
    call.ops->sum_values(v, sum.values.data(), *call.stream);
    sum.tokens += v.rows;
  }

  void choose(State& state, const LayerCall& call, ConstMatrix q, std::int64_t row,
              TokenChoice& choice) override {
    const std::int64_t context = call.keys.context_tokens;
    const std::int64_t budget = budget_tokens(options_, context, context);
    choice.clear();
    choice.dense = is_dense(budget, context);
    if (choice.dense) return;
    // Only now, so that blocks nobody looks into this way never cost a pass over their keys.
    call.ops->transpose_keys(call.cache, call.keys, *call.stream);
    const ChannelChoice channels{
        .rank = rank_,
        .tokens = budget,
        .recent = std::min(context, share_of_tokens(options_.sparq.local, budget - 1) + 1),
        .sum_logits = options_.sparq.logit_sum,
        .temperature = temperature_};
    choice.tokens.resize(static_cast<std::size_t>(shape_.kv_heads * budget));
    for (std::int64_t head = 1; head <= shape_.kv_heads; ++head) {
      choice.begins.push_back(static_cast<std::int32_t>(head * budget));
    }
    if (reallocates_) choice.alpha.resize(static_cast<std::size_t>(shape_.heads));
    call.ops->choose_by_channels(q, row, shape_.heads, call.cache, call.keys, call.scale, channels,
                                 choice.tokens.data(), reallocates_ ? choice.alpha.data() : nullptr,
                                 call.workspace, *call.stream);
    if (!reallocates_) return;
    const SparqState::Sum& sum =
        static_cast<SparqState&>(state).sums[static_cast<std::size_t>(call.layer)];
    TRIPHASE_CHECK(sum.tokens == context, "sparq: every row's V must have been appended");
    choice.value_sums = sum.values.data();
    choice.summed_tokens = sum.tokens;
  }

 private:
  bool reallocates_ = false;
  std::int64_t rank_ = 0;
  ChannelTemperature temperature_ = ChannelTemperature::kCoverage;
};

}  // namespace

std::unique_ptr<AttentionMethod> make_sparq(const AttentionOptions& options,
                                            const MethodShape& shape, const ContextClusters*) {
  return std::make_unique<Sparq>(options, shape);
}

}  // namespace triphase
