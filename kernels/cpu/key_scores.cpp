#include <algorithm>

#include "kernels/cpu/cpu_sparse_kernels.h"
#include "kernels/sizing/sparse_workspace.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/key_scores.cpp"
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/attention_split-inl.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {
namespace {

// A call's scratch is one thread's scratch of attention and one query's weights per thread.
struct ScoreCall {
  Call call;
  const AttentionShape* shape;

  [[nodiscard]] float* row_of(int worker) const {
    return call.partials + worker * sparse_row_floats(*shape);
  }
};

ScoreCall make_call(ThreadPool& pool, const KeyScores& scores, const AttentionShape& shape,
                    Workspace workspace) {
  Call call{{scores.q, scores.heads, scores.cache, {}, scores.scale, {}}, attention_layout(shape)};
  call.thread_scratch = reinterpret_cast<float*>(workspace.data);
  call.partials = call.thread_scratch + pool.threads() * call.layout.thread_floats;
  return {call, &shape};
}

// One query (row `query_begin` of q, the last position of its context) under one KV head.
Block block_under(const Call& call, const AttentionSegment& segment, std::int64_t kv_head) {
  Block block{};
  block.segment = &segment;
  block.kv_head = kv_head;
  block.queries = 1;
  block.heads = block.rows = call.group();
  block.first_head = kv_head * block.heads;
  return block;
}

// Base-2 logits of one split into to[row * stride + token].
template <class Partial>
void score_split(const Call& call, const Block& block, const Scratch& scratch, std::int64_t split,
                 float* to, std::int64_t stride) {
  const KvLayerView& cache = call.cache;
  const std::int64_t dim = cache.head_dim;
  const bool coded = cache.quantized();
  const std::int64_t own =
      coded ? (block.segment->context_tokens - 1) / cache.page_tokens : std::int64_t{-1};
  std::int64_t at[2 * kTile];
  const Tokens<U8> codes{static_cast<const U8*>(cache.k), at, dim};
  const Tokens<Partial> partial{static_cast<const Partial*>(coded ? cache.partial_k : cache.k), at,
                                dim};
  const Ahead<U8> next_codes(Tokens<U8>{codes.data, at + kTile, dim});
  const Ahead<Partial> next(Tokens<Partial>{partial.data, at + kTile, dim});
  std::int64_t scaled = -1;
  for_tiles(call, block, split, at, [&](std::int64_t tile, std::int64_t lo, std::int64_t hi) {
    if (!coded) {
      score_part(call, block, scratch.q, lo, hi, partial, next, scratch.scores);
    } else {
      for_parts(cache.page_tokens, block, tile, lo, hi, [&](const BlockPart& part) {
        if (part.page_index == own) {
          score_part(call, block, scratch.q, part.lo, part.hi, partial, NothingAhead(),
                     scratch.scores);
          return;
        }
        if (scaled != part.page_index) {
          scale_queries(call, block, scratch, scales_of(call, block, part.page_index, 0));
          scaled = part.page_index;
        }
        score_part(call, block, scratch.scaled_q, part.lo, part.hi, codes, next_codes,
                   scratch.part_scores);
        take_scores(block, scratch, part);
      });
    }
    for (std::int64_t row = 0; row < block.rows; ++row) {
      std::copy(scratch.scores + row * kTile + lo, scratch.scores + row * kTile + hi,
                to + row * stride + tile + lo);
    }
  });
}

void score_split_of_type(const Call& call, const Block& block, const Scratch& scratch,
                         std::int64_t split, float* to, std::int64_t stride) {
  const KvLayerView& cache = call.cache;
  with_type(cache.quantized() ? cache.partial_dtype : cache.dtype,
            [&]<class T>() { score_split<T>(call, block, scratch, split, to, stride); });
}

// Base-2 logits of a query head become weights; sums run over vectors at absolute positions.
void normalize(ScoreScale scale, std::int64_t head, float* row, std::int64_t count) {
  const DF d;
  const float sink = scale.sinks == nullptr ? kMinusInfinity : scale.sinks[head] * kLog2E;
  const float base = finite_base(std::max(highest_of(row, count), sink));
  float whole = sum_weights<true>(row, count, base);
  if (scale.sinks != nullptr) {
    whole += hn::GetLane(exp2_nonpositive(hn::Set(d, sink - base)));
  }
  const VF total = hn::Set(d, whole);
  for_columns(count, [&](std::int64_t t, std::int64_t some) {
    store_some(hn::Div(load_some(row + t, some), total), row + t, some);
  });
}

}  // namespace

void score_keys(ThreadPool& pool, const KeyScores& scores, const AttentionShape& shape,
                Workspace workspace) {
  const ScoreCall score = make_call(pool, scores, shape, workspace);
  AttentionSegment segment = scores.keys;
  segment.query_count = 1;
  segment.window = 0;
  segment.chosen = nullptr;
  const std::int64_t group = score.call.group();
  const std::int64_t splits = score.call.layout.splits;
  pool.parallel_for(scores.cache.kv_heads * splits, [&](std::int64_t task, int worker) {
    const Block block = block_under(score.call, segment, task / splits);
    const Scratch scratch = scratch_of(score.call, worker);
    load_queries(score.call, block, scratch.q);
    score_split_of_type(score.call, block, scratch, task % splits,
                        scores.to + block.kv_head * group * scores.stride, scores.stride);
  });
  pool.parallel_for(scores.heads, [&](std::int64_t head, int) {
    normalize(scores.scale, head, scores.to + head * scores.stride, segment.context_tokens);
  });
}

void accumulate_columns(ThreadPool& pool, const KeyScores& scores, const AttentionShape& shape,
                        Workspace workspace) {
  const ScoreCall score = make_call(pool, scores, shape, workspace);
  const AttentionSegment& segment = scores.keys;
  pool.parallel_for(scores.cache.kv_heads, [&](std::int64_t kv_head, int worker) {
    const Scratch scratch = scratch_of(score.call, worker);
    float* weights = score.row_of(worker);
    for (std::int64_t query = 0; query < segment.query_count; ++query) {
      AttentionSegment own = segment;
      own.query_begin = segment.query_begin + query;
      own.query_count = 1;
      own.context_tokens = segment.context_tokens - segment.query_count + query + 1;
      const std::int64_t context = own.context_tokens;
      const std::int64_t weight_stride = round_up(context, 16);
      const Block block = block_under(score.call, own, kv_head);
      load_queries(score.call, block, scratch.q);
      // A window hides tokens in front of it.
      const std::int64_t begin = block.begin(0);
      for (std::int64_t split = begin / kAttentionSplit; split * kAttentionSplit < context;
           ++split) {
        score_split_of_type(score.call, block, scratch, split, weights, weight_stride);
      }
      const float* log_sums = segment.log_sums + own.query_begin * scores.heads + block.first_head;
      for (std::int64_t head = 0; head < block.rows; ++head) {
        float* row = weights + head * weight_stride;
        std::fill(row, row + begin, kMinusInfinity);
        const VF log_sum = hn::Set(DF(), log_sums[head] * kLog2E);
        float* to = scores.to + kv_head * scores.stride;
        for_columns(context, [&](std::int64_t t, std::int64_t some) {
          const VF weight = exp2_nonpositive(hn::Sub(load_some(row + t, some), log_sum));
          store_some(hn::Add(load_some(to + t, some), weight), to + t, some);
        });
      }
    }
  });
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace triphase::cpu {
namespace {
HWY_EXPORT(score_keys);
HWY_EXPORT(accumulate_columns);
}  // namespace

void score_keys(ThreadPool& pool, const KeyScores& scores, const AttentionShape& shape,
                Workspace workspace) {
  HWY_DYNAMIC_DISPATCH(score_keys)(pool, scores, shape, workspace);
}

void accumulate_columns(ThreadPool& pool, const KeyScores& scores, const AttentionShape& shape,
                        Workspace workspace) {
  HWY_DYNAMIC_DISPATCH(accumulate_columns)(pool, scores, shape, workspace);
}

}  // namespace triphase::cpu
#endif
