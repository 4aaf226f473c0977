// SparQ Attention (section 4, appendix B): scores from the query's largest channels, exact
// attention over the best tokens, the mean of V in place of the others.

#include <algorithm>
#include <cmath>

#include "models/attention/methods.h"
#include "runtime/base/error.h"
#include "scheduler/attention/token_choice.h"

namespace triphase {
namespace {

struct SparqState final : AttentionMethod::State {
  struct Sum {
    std::vector<float> values;  // [kv_head][head_dim]
    std::int64_t tokens = 0;
  };
  [[nodiscard]] std::uint64_t bytes() const override {
    std::uint64_t sum = 0;
    for (const Sum& layer : sums) sum += 4 * layer.values.size();
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
  }

  [[nodiscard]] Timing timing(std::int64_t) const override { return Timing::kLate; }
  [[nodiscard]] bool per_kv_head() const override { return true; }
  [[nodiscard]] bool reads_all_keys() const override { return true; }
  [[nodiscard]] bool needs_every_row() const override { return reallocates_; }

  [[nodiscard]] std::unique_ptr<State> begin(std::int64_t) const override {
    auto state = std::make_unique<SparqState>();
    state->sums.resize(static_cast<std::size_t>(shape_.layers));
    return state;
  }

  void appended(State& state, const LayerCall& call, ConstMatrix v) override {
    if (!reallocates_) return;
    SparqState::Sum& sum =
        static_cast<SparqState&>(state).sums[static_cast<std::size_t>(call.layer)];
    sum.values.resize(static_cast<std::size_t>(v.cols), 0.0F);
    for (std::int64_t row = 0; row < v.rows; ++row) {
      const float* from = static_cast<const float*>(v.data) + row * v.row_stride;
      for (std::int64_t c = 0; c < v.cols; ++c) sum.values[static_cast<std::size_t>(c)] += from[c];
    }
    sum.tokens += v.rows;
  }

  void choose(State& state, const LayerCall& call, ConstMatrix q, std::int64_t row,
              TokenChoice& choice) override {
    const std::int64_t context = call.keys.context_tokens;
    const std::int64_t budget = budget_tokens(options_, context, context);
    choice.clear();
    choice.dense = is_dense(budget, context);
    if (choice.dense) return;
    mask_query(static_cast<const float*>(q.data) + row * q.row_stride);
    probabilities_.resize(static_cast<std::size_t>(shape_.heads * context));
    const ConstMatrix masked{masked_.data(), DType::kF32, 1, shape_.heads * shape_.head_dim,
                             shape_.heads * shape_.head_dim};
    call.ops->score_keys(masked, 0, shape_.heads, call.cache, call.keys, call.scale,
                         probabilities_.data(), context, call.workspace, *call.stream);
    const auto local = share_of_tokens(options_.sparq.local, budget - 1) + 1;
    const IndexRange recent{std::max<std::int64_t>(0, context - local), context};
    if (reallocates_) choice.alpha.resize(static_cast<std::size_t>(shape_.heads));
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
      sum_group(head, context);
      choose_top(scores_, budget - (recent.end - recent.begin), {&recent, 1}, scratch_,
                 choice.tokens);
      if (reallocates_) weigh_chosen(head, context, choice);
      choice.begins.push_back(static_cast<std::int32_t>(choice.tokens.size()));
    }
    if (!reallocates_) return;
    const SparqState::Sum& sum =
        static_cast<SparqState&>(state).sums[static_cast<std::size_t>(call.layer)];
    TRIPHASE_CHECK(sum.tokens == context, "sparq: every row's V must have been appended");
    for (const float value : sum.values) {
      choice.mean.push_back(value / static_cast<float>(sum.tokens));
    }
  }

 private:
  // Step 1: the group's largest channels, scaled so that the usual scale gives eq. 9's temperature.
  void mask_query(const float* q) {
    const std::int64_t dim = shape_.head_dim;
    const std::int64_t group = shape_.group();
    masked_.assign(static_cast<std::size_t>(shape_.heads * dim), 0.0F);
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
      scores_.assign(static_cast<std::size_t>(dim), 0.0F);
      for (std::int64_t i = head * group; i < (head + 1) * group; ++i) {
        for (std::int64_t c = 0; c < dim; ++c) {
          scores_[static_cast<std::size_t>(c)] += std::abs(q[i * dim + c]);
        }
      }
      channels_.clear();
      choose_top(scores_, rank_, {}, scratch_, channels_);
      for (std::int64_t i = head * group; i < (head + 1) * group; ++i) {
        float all = 0;
        for (std::int64_t c = 0; c < dim; ++c) all += std::abs(q[i * dim + c]);
        float kept = 0;
        for (const std::int32_t c : channels_) kept += std::abs(q[i * dim + c]);
        const float factor = kept > 0.0F ? std::sqrt(all / kept) : 0.0F;
        for (const std::int32_t c : channels_) {
          masked_[static_cast<std::size_t>(i * dim + c)] = q[i * dim + c] * factor;
        }
      }
    }
  }

  void sum_group(std::int64_t head, std::int64_t context) {
    scores_.assign(static_cast<std::size_t>(context), 0.0F);
    for (std::int64_t i = head * shape_.group(); i < (head + 1) * shape_.group(); ++i) {
      const float* row = probabilities_.data() + i * context;
      for (std::int64_t t = 0; t < context; ++t) {
        // Sums of log weights rank as sums of logits: they differ by a constant.
        scores_[static_cast<std::size_t>(t)] +=
            options_.sparq.logit_sum ? std::log(row[t]) : row[t];
      }
    }
  }

  void weigh_chosen(std::int64_t head, std::int64_t context, TokenChoice& choice) const {
    const auto begin = static_cast<std::size_t>(choice.begins.back());
    for (std::int64_t i = head * shape_.group(); i < (head + 1) * shape_.group(); ++i) {
      float alpha = 0;
      for (std::size_t at = begin; at < choice.tokens.size(); ++at) {
        alpha += probabilities_[static_cast<std::size_t>(i * context + choice.tokens[at])];
      }
      choice.alpha[static_cast<std::size_t>(i)] = std::min(alpha, 1.0F);
    }
  }

  bool reallocates_ = false;
  std::int64_t rank_ = 0;
  std::vector<float> masked_;
  std::vector<float> probabilities_;
  std::vector<float> scores_;
  std::vector<std::int32_t> channels_;
  std::vector<std::uint32_t> scratch_;
};

}  // namespace

std::unique_ptr<AttentionMethod> make_sparq(const AttentionOptions& options,
                                            const MethodShape& shape) {
  return std::make_unique<Sparq>(options, shape);
}

}  // namespace triphase
