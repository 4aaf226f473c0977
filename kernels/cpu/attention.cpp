#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/rounding.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/sizing/attention_workspace.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cpp"
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/attention_split-inl.h"

// A task is one block of queries of one segment under one KV head, or a decoded query under several
// (heads_of_decoded). It walks the context in splits of kAttentionSplit tokens; each split is an
// online softmax over tiles of kAttentionTile tokens, started afresh, and the splits' (m, l, o) are
// merged in ascending order. When a call has too few tasks for the threads, splits run in parallel
// and are merged afterwards: the same arithmetic. What a row's bits depend on is thus its position
// and the cache alone.

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {
namespace {

// Bytes from which on the processor's own prefetcher is faster than lines asked for one by one.
// Of INT8 codes two heads' pieces of a page are enough (measured).
constexpr std::int64_t kLongRun = 48 * 1024;
// Fewer for each further thread, and threads would wait for the last task.
constexpr std::int64_t kTasksPerThread = 4;

// Splits that any query of the block looks into.
struct SplitRange {
  std::int64_t begin;
  std::int64_t end;
};
SplitRange splits_of(const Block& block) {
  const std::int64_t end = block.end(block.queries - 1);
  return {block.begin(0) / kAttentionSplit, ceil_div(end, kAttentionSplit)};
}

// Adds one split's results to those of the splits before it, for rows that see any of the split.
void merge(const Call& call, const Block& block, std::int64_t split, const State& part,
           const State& merged) {
  const DF d;
  const std::int64_t stride = call.layout.padded_dim;
  for (std::int64_t row = 0; row < block.rows; ++row) {
    const std::int64_t query = row / block.heads;
    if (block.begin(query) >= (split + 1) * kAttentionSplit ||
        block.end(query) <= split * kAttentionSplit || block.begin(query) >= block.end(query)) {
      continue;
    }
    const float top = part.top[row] > merged.top[row] ? part.top[row] : merged.top[row];
    const float base = finite_base(top);
    const VF old_factor = exp2_nonpositive(hn::Set(d, merged.top[row] - base));
    const VF new_factor = exp2_nonpositive(hn::Set(d, part.top[row] - base));
    merged.top[row] = top;
    merged.total[row] =
        merged.total[row] * hn::GetLane(old_factor) + part.total[row] * hn::GetLane(new_factor);
    const float* from = part.out + row * stride;
    float* to = merged.out + row * stride;
    for (std::int64_t c = 0; c < stride; c += kLanes) {
      const VF kept = hn::Mul(hn::Load(d, to + c), old_factor);
      hn::Store(hn::MulAdd(hn::Load(d, from + c), new_factor, kept), d, to + c);
    }
  }
}

// A row's sink joins its sum, as a token whose value is 0 would.
void add_sink(const Call& call, std::int64_t head, std::int64_t row, const State& merged) {
  if (call.scale.sinks == nullptr) return;
  const DF d;
  const float sink = call.scale.sinks[head] * kLog2E;
  const float top = std::max(merged.top[row], sink);
  const float base = finite_base(top);
  const VF kept = exp2_nonpositive(hn::Set(d, merged.top[row] - base));
  const VF added = exp2_nonpositive(hn::Set(d, sink - base));
  merged.top[row] = top;
  merged.total[row] = merged.total[row] * hn::GetLane(kept) + hn::GetLane(added);
  float* out = merged.out + row * call.layout.padded_dim;
  for (std::int64_t c = 0; c < call.layout.padded_dim; c += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, out + c), kept), d, out + c);
  }
}

// What a row of chosen tokens attended stands for its whole context: its share of it, and the mean
// of V for the rest.
void add_rest(const Call& call, const Block& block, std::int64_t head, float* to) {
  const Selection* chosen = block.segment->chosen;
  if (chosen == nullptr || chosen->alpha == nullptr) return;
  const std::int64_t row = block.segment->chosen_row;
  const std::int64_t dim = call.cache.head_dim;
  const float share = chosen->alpha[row * call.heads + head];
  const VF own = hn::Set(DF(), share);
  if (chosen->means == nullptr) {
    for_columns(dim, [&](std::int64_t c, std::int64_t count) {
      store_some(hn::Mul(own, load_some(to + c, count)), to + c, count);
    });
    return;
  }
  const ValueMean& mean = chosen->means[row];
  const float* sums = in_layer(mean.sums, mean.layer_bytes, chosen->layer) + block.kv_head * dim;
  const VF rest = hn::Set(DF(), 1.0F - share);
  const VF per_token = hn::Set(DF(), 1.0F / static_cast<float>(mean.tokens));
  for_columns(dim, [&](std::int64_t c, std::int64_t count) {
    const VF of_rest = hn::Mul(rest, hn::Mul(load_some(sums + c, count), per_token));
    store_some(hn::Add(hn::Mul(own, load_some(to + c, count)), of_rest), to + c, count);
  });
}

void store_results(const Call& call, const Block& block, const State& merged) {
  const std::int64_t dim = call.cache.head_dim;
  for (std::int64_t row = 0; row < block.rows; ++row) {
    const std::int64_t index = row / block.heads;
    const std::int64_t query = block.segment->query_begin + block.first_query + index;
    const std::int64_t head = block.first_head + row % block.heads;
    float* to = static_cast<float*>(call.out.data) + query * call.out.row_stride + head * dim;
    const float* from = merged.out + row * call.layout.padded_dim;
    if (block.begin(index) >= block.end(index)) {
      std::fill_n(to, dim, 0.0F);
      add_rest(call, block, head, to);
      continue;
    }
    add_sink(call, head, row, merged);
    if (float* softmax = block.scores.softmax; softmax != nullptr) {
      const float top = merged.top[row];
      const float sum = merged.total[row];
      softmax[2 * row] = finite_base(top);
      softmax[2 * row + 1] = sum > 0.0F ? 1.0F / sum : 0.0F;
    }
    if (block.segment->log_sums != nullptr && !block.selected()) {
      block.segment->log_sums[query * call.heads + head] =
          static_cast<float>((static_cast<double>(merged.top[row]) + std::log2(merged.total[row])) *
                             std::numbers::ln2);
    }
    const VF total = hn::Set(DF(), merged.total[row]);
    for_columns(dim, [&](std::int64_t c, std::int64_t count) {
      store_some(hn::Div(hn::Load(DF(), from + c), total), to + c, count);
    });
    add_rest(call, block, head, to);
  }
}

void run_task(const Call& call, std::int64_t task, int worker) {
  const Block block = block_of(call, task);
  const Scratch scratch = scratch_of(call, worker);
  load_queries(call, block, scratch.q);
  reset(call, block, scratch.merged);
  const SplitRange splits = splits_of(block);
  for (std::int64_t split = splits.begin; split < splits.end; ++split) {
    attend_split_of_type(call, block, scratch, split);
    merge(call, block, split, scratch.split, scratch.merged);
  }
  store_results(call, block, scratch.merged);
}

State partial_of(const Call& call, std::int64_t task, std::int64_t split) {
  float* at = call.partials + (task * call.layout.splits + split) * call.layout.partial_floats;
  return take_state(at, call.layout.few_rows, call.layout.padded_dim);
}

void run_split(const Call& call, std::int64_t task, std::int64_t split, int worker) {
  const Block block = block_of(call, task);
  const SplitRange splits = splits_of(block);
  if (split < splits.begin || split >= splits.end) return;
  Scratch scratch = scratch_of(call, worker);
  scratch.split = partial_of(call, task, split);
  load_queries(call, block, scratch.q);
  attend_split_of_type(call, block, scratch, split);
}

void merge_splits(const Call& call, std::int64_t task, int worker) {
  const Block block = block_of(call, task);
  const Scratch scratch = scratch_of(call, worker);
  reset(call, block, scratch.merged);
  const SplitRange splits = splits_of(block);
  for (std::int64_t split = splits.begin; split < splits.end; ++split) {
    merge(call, block, split, partial_of(call, task, split), scratch.merged);
  }
  store_results(call, block, scratch.merged);
}

// Where each segment's tasks of so many queries begin; returns the number of tasks.
std::int64_t lay_out_tasks(Call& call, std::int64_t queries) {
  call.block_queries = queries;
  call.table_size = 0;
  std::int64_t tasks = 0;
  for (std::size_t i = 0; i < call.segments.size(); ++i) {
    const AttentionSegment& segment = call.segments[i];
    if (segment.query_count == 0) continue;
    call.table[call.table_size++] = {static_cast<std::int64_t>(i), tasks};
    tasks += tasks_of(call, segment);
  }
  return tasks;
}

// KV heads of a decoded segment's task: so many that a page's keys of them are a long run, and so
// few that there is work for all threads. 1: head by head.
std::int64_t heads_of_decoded(const Call& call, std::int64_t threads) {
  const KvLayerView& cache = call.cache;
  if (cache.records || (!cache.quantized() && call.group() > 1)) return 1;
  const std::int64_t piece =
      cache.page_tokens * cache.head_dim * static_cast<std::int64_t>(dtype_bytes(cache.dtype));
  std::int64_t decoded = 0;
  std::int64_t splits = 0;
  for (const AttentionSegment& segment : call.segments) {
    if (segment.query_count != 1 || segment.chosen != nullptr) continue;
    ++decoded;
    const std::int64_t seen = segment.window > 0 ? std::min(segment.window, segment.context_tokens)
                                                 : segment.context_tokens;
    splits += ceil_div(seen, kAttentionSplit);
  }
  const std::int64_t run = cache.quantized() ? 2 * piece : kLongRun;
  std::int64_t heads = std::min(cache.kv_heads, call.layout.few_rows / call.group());
  for (; heads * piece >= run; heads /= 2) {
    const std::int64_t parts = ceil_div(cache.kv_heads, heads);
    const bool split = decoded * parts <= call.layout.max_split_tasks;
    if ((split ? splits : decoded) * parts > kTasksPerThread * (threads - 1)) return heads;
  }
  return 1;
}

void run_tasks(ThreadPool& pool, const Call& call, std::int64_t tasks) {
  if (tasks > call.layout.max_split_tasks || call.layout.splits <= 1) {
    pool.parallel_for(tasks, [&](std::int64_t task, int worker) { run_task(call, task, worker); });
    return;
  }
  const std::int64_t splits = call.layout.splits;
  pool.parallel_for(tasks * splits, [&](std::int64_t unit, int worker) {
    run_split(call, unit / splits, unit % splits, worker);
  });
  pool.parallel_for(tasks,
                    [&](std::int64_t task, int worker) { merge_splits(call, task, worker); });
}

}  // namespace

void attention(ThreadPool& pool, const AttentionCall& given, const AttentionShape& shape,
               Workspace workspace) {
  Call call{given, attention_layout(shape)};
  call.decoded_heads = heads_of_decoded(call, pool.threads());
  call.table = reinterpret_cast<SegmentTasks*>(workspace.data);
  call.thread_scratch = reinterpret_cast<float*>(workspace.data + call.layout.table_bytes);
  call.partials = call.thread_scratch + pool.threads() * call.layout.thread_floats;
  std::int64_t tasks = lay_out_tasks(call, call.layout.block_queries);
  // So few leave threads without work, and their splits' results have few_rows rows.
  if (tasks <= call.layout.max_split_tasks) {
    tasks = lay_out_tasks(call, call.layout.few_queries);
  }
  run_tasks(pool, call, tasks);
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace triphase::cpu {
namespace {
HWY_EXPORT(attention);
}  // namespace

void attention(ThreadPool& pool, const AttentionCall& call, const AttentionShape& shape,
               Workspace workspace) {
  HWY_DYNAMIC_DISPATCH(attention)(pool, call, shape, workspace);
}

}  // namespace triphase::cpu
#endif
