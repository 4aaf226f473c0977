#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/rounding.h"
#include "kernels/cpu/cpu_sparse_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/channel_choice.cpp"
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/channel_scores-inl.h"
#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/select_top-inl.h"

// A KV head's query is scored over all tokens into one thread's scratch, then its tokens are
// chosen. With fewer KV heads than threads, the heads' tokens are scored in parts by all threads
// before one thread each chooses: the same arithmetic.

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {
namespace {

struct ChoiceCall : ChannelCall {
  ChannelChoiceLayout layout;
  float* scratch;

  [[nodiscard]] std::int64_t group() const { return heads / cache.kv_heads; }
  [[nodiscard]] float* scratch_of(std::int64_t owner) const {
    return scratch + owner * layout.size;
  }
};

// The `rank` channels with the largest sum over the group of |q_c|, ascending; of equal sums the
// smaller channel wins and NaN comes last.
void choose_group_channels(const float* q, std::int64_t group, std::int64_t dim, std::int64_t rank,
                           std::uint64_t* ranked, std::int32_t* channels) {
  for (std::int64_t c = 0; c < dim; ++c) {
    float sum = 0.0F;
    for (std::int64_t i = 0; i < group; ++i) sum += std::abs(q[i * dim + c]);
    // Bits of numbers that are not negative rank as the numbers do.
    const std::uint32_t bits = std::isnan(sum) ? 0U : std::bit_cast<std::uint32_t>(sum);
    ranked[c] = std::uint64_t{bits} << 32 | (0xFFFFFFFFU - static_cast<std::uint32_t>(c));
  }
  std::nth_element(ranked, ranked + rank - 1, ranked + dim, std::greater<>());
  for (std::int64_t i = 0; i < rank; ++i) {
    channels[i] = static_cast<std::int32_t>(0xFFFFFFFFU - static_cast<std::uint32_t>(ranked[i]));
  }
  std::sort(channels, channels + rank);
}

// sqrt(head_dim) / tau of one query head; 0 for a query of zeros.
float sharpness(const ChannelChoice& choice, const float* q, std::int64_t dim,
                const std::int32_t* channels) {
  if (choice.temperature == ChannelTemperature::kHeadDim) return 1.0F;
  if (choice.temperature == ChannelTemperature::kRank) {
    return std::sqrt(static_cast<float>(dim) / static_cast<float>(choice.rank));
  }
  float all = 0.0F;
  for (std::int64_t c = 0; c < dim; ++c) all += std::abs(q[c]);
  float kept = 0.0F;
  for (std::int64_t c = 0; c < choice.rank; ++c) kept += std::abs(q[channels[c]]);
  return kept > 0.0F ? std::sqrt(all / kept) : 0.0F;
}

// Steps 1 and the query of step 2, for scores that are base-2 logits.
ChannelQuery load_query(const ChoiceCall& call, std::int64_t head, float* scratch) {
  const std::int64_t dim = call.cache.head_dim;
  const std::int64_t group = call.group();
  const ChannelChoiceLayout& layout = call.layout;
  const float* from = static_cast<const float*>(call.q.data) +
                      call.keys.query_begin * call.q.row_stride + head * group * dim;
  ChannelQuery query{};
  query.rank = call.choice.rank;
  query.heads = group;
  query.stride = layout.query_row;
  auto* channels = reinterpret_cast<std::int32_t*>(scratch + layout.channels);
  query.channels = channels;
  // The tile is not in use yet.
  choose_group_channels(from, group, dim, query.rank,
                        reinterpret_cast<std::uint64_t*>(scratch + layout.tile), channels);
  float* to = scratch + layout.queries;
  query.q = to;
  query.scaled = scratch + layout.scaled_queries;
  query.starts = scratch + layout.starts;
  for (std::int64_t i = 0; i < group; ++i) {
    const float factor =
        call.scale * kLog2E * sharpness(call.choice, from + i * dim, dim, channels);
    for (std::int64_t c = 0; c < query.rank; ++c) {
      to[i * query.stride + c] = from[i * dim + channels[c]] * factor;
    }
  }
  return query;
}

// Scores of the tokens of pages [first, end) into the rows of `owner`'s scratch.
void score_pages(const ChoiceCall& call, std::int64_t head, std::int64_t first, std::int64_t end,
                 float* scratch, float* scores) {
  const ChannelQuery query = load_query(call, head, scratch);
  const KvLayerView& cache = call.cache;
  with_type(cache.quantized() ? cache.partial_dtype : cache.dtype, [&]<class T>() {
    score_channels<T>({cache, call.keys, head}, query, first, end,
                      {scores, call.layout.row, scratch + call.layout.tile});
  });
}

// Sum over the chosen tokens of their terms, which are in the row, or of 2^(row - top).
template <bool kept>
float sum_chosen(const float* row, const std::int32_t* tokens, std::int64_t count, float top) {
  const DF d;
  const VF base = hn::Set(d, top);
  VF sum = hn::Zero(d);
  alignas(64) std::int32_t some_tokens[kLanes] = {};
  for_columns(count, [&](std::int64_t i, std::int64_t some) {
    std::copy_n(tokens + i, some, some_tokens);
    VF weight = hn::GatherIndex(d, row, hn::Load(DI32(), some_tokens));
    if constexpr (!kept) weight = exp2_nonpositive(hn::Sub(weight, base));
    if (some < kLanes) {
      weight = hn::IfThenElseZero(hn::FirstN(d, static_cast<std::size_t>(some)), weight);
    }
    sum = hn::Add(sum, weight);
  });
  return sum_lanes(sum);
}

// to = the sum over the group of factors[head] * row, heads in their order.
void add_rows(const float* rows, std::int64_t stride, const float* factors, std::int64_t heads,
              std::int64_t count, float* to) {
  const DF d;
  for_columns(count, [&](std::int64_t t, std::int64_t some) {
    VF sum = hn::Zero(d);
    for (std::int64_t i = 0; i < heads; ++i) {
      sum = hn::MulAdd(load_some(rows + i * stride + t, some), hn::Set(d, factors[i]), sum);
    }
    store_some(sum, to + t, some);
  });
}

// Step 3 for one KV head, from its scores.
void choose_tokens(const ChoiceCall& call, std::int64_t head, float* scores, float* scratch) {
  const ChannelChoiceLayout& layout = call.layout;
  const ChannelChoice& choice = call.choice;
  const std::int64_t context = call.keys.context_tokens;
  const std::int64_t group = call.group();
  const bool sums_weights = group > 1 && !choice.sum_logits;
  float* tops = scratch + layout.starts;
  float* factors = scratch + layout.scaled_queries;
  for (std::int64_t i = 0; i < group; ++i) {
    factors[i] = 1.0F;
    if (!sums_weights && call.alpha == nullptr) continue;
    float* row = scores + i * layout.row;
    tops[i] = finite_base(highest_of(row, context));
    factors[i] = 1.0F / (sums_weights ? sum_weights<true>(row, context, tops[i])
                                      : sum_weights<false>(row, context, tops[i]));
  }
  const float* ranking = scores;
  if (group > 1) {
    if (!sums_weights) std::fill_n(scratch + layout.queries, group, 1.0F);
    add_rows(scores, layout.row, sums_weights ? factors : scratch + layout.queries, group, context,
             scores + layout.sums);
    ranking = scores + layout.sums;
  }
  std::int32_t* tokens = call.tokens + head * call.capacity;
  const std::int64_t ranked = choice.tokens - choice.recent;
  const std::int64_t candidates = context - choice.recent;
  select_top(ranking, candidates, ranked,
             reinterpret_cast<std::int32_t*>(scratch + layout.selection), tokens);
  for (std::int64_t i = 0; i < choice.recent; ++i) {
    tokens[ranked + i] = static_cast<std::int32_t>(candidates + i);
  }
  if (call.alpha == nullptr) return;
  for (std::int64_t i = 0; i < group; ++i) {
    const float* row = scores + i * layout.row;
    const float sum = sums_weights ? sum_chosen<true>(row, tokens, choice.tokens, tops[i])
                                   : sum_chosen<false>(row, tokens, choice.tokens, tops[i]);
    call.alpha[head * group + i] = std::min(sum * factors[i], 1.0F);
  }
}

}  // namespace

void choose_by_channels(ThreadPool& pool, const ChannelCall& given, const AttentionShape& shape,
                        Workspace workspace) {
  const ChoiceCall call{given, channel_choice_layout(shape),
                        reinterpret_cast<float*>(workspace.data)};
  const KvLayerView& cache = call.cache;
  const std::int64_t pages = ceil_div(call.keys.context_tokens, cache.page_tokens);
  if (cache.kv_heads >= pool.threads()) {
    pool.parallel_for(cache.kv_heads, [&](std::int64_t head, int worker) {
      float* scratch = call.scratch_of(worker);
      score_pages(call, head, 0, pages, scratch, scratch);
      choose_tokens(call, head, scratch, scratch);
    });
    return;
  }
  // Scores lie in the scratch of as many threads as there are KV heads.
  const std::int64_t part = std::max<std::int64_t>(1, kAttentionSplit / cache.page_tokens);
  const std::int64_t parts = ceil_div(pages, part);
  pool.parallel_for(cache.kv_heads * parts, [&](std::int64_t task, int worker) {
    const std::int64_t head = task / parts;
    const std::int64_t first = task % parts * part;
    score_pages(call, head, first, std::min(pages, first + part), call.scratch_of(worker),
                call.scratch_of(head));
  });
  pool.parallel_for(cache.kv_heads, [&](std::int64_t head, int worker) {
    choose_tokens(call, head, call.scratch_of(head), call.scratch_of(worker));
  });
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace triphase::cpu {
namespace {
HWY_EXPORT(choose_by_channels);
}  // namespace

void choose_by_channels(ThreadPool& pool, const ChannelCall& call, const AttentionShape& shape,
                        Workspace workspace) {
  HWY_DYNAMIC_DISPATCH(choose_by_channels)(pool, call, shape, workspace);
}

}  // namespace triphase::cpu
#endif
