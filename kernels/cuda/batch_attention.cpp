#include "kernels/cuda/batch_attention.h"

#include <algorithm>
#include <limits>
#include <numbers>
#include <vector>

#include "base/rounding.h"
#include "kernels/cuda/cache_view.h"
#include "kernels/cuda/gather_attn.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/listed_rows.h"
#include "kernels/cuda/merge_states.h"
#include "kernels/cuda/paged_attention.h"
#include "kernels/cuda/plan_splits.h"
#include "kernels/cuda/prefill_attention.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

constexpr int kRowOverhead = 1;  // units of 32 tokens that starting a row is worth

enum class Route : std::uint8_t { kPaged, kPagedListed, kGatherAll, kGatherChosen };

Route route_of(const AttentionSegment& segment, const KvLayerView& cache, bool deterministic) {
  if (segment.chosen != nullptr) {
    require(
        gather_serves(cache), "attention",
        "chosen tokens need an F16, BF16 or INT8 cache in pages of 32, 64 or 128", [&] {
          return shape_text({{"page_tokens", cache.page_tokens}, {"head_dim", cache.head_dim}}) +
                 ", cache " + std::string(dtype_name(cache.dtype));
        });
    return segment.chosen->all_from >= 0 ? Route::kPagedListed : Route::kGatherChosen;
  }
  const bool gathers = segment.query_count == 1 && segment.log_sums == nullptr &&
                       gather_serves(cache) && !deterministic;
  return gathers ? Route::kGatherAll : Route::kPaged;
}

// The tables of a run of segments; entry (b, i) of pages is sequence b's i-th page.
struct Tables {
  std::int64_t max_pages = 1;
  std::vector<std::int32_t> pages, scale_pages, partial_pages, lengths;
};

Tables tables_of(std::span<const AttentionSegment> run, const KvLayerView& cache) {
  Tables tables;
  for (const AttentionSegment& segment : run) {
    tables.max_pages = std::max(tables.max_pages, blocks_of(cache, segment));
  }
  const auto entries = run.size() * static_cast<std::size_t>(tables.max_pages);
  tables.pages.assign(entries, 0);
  if (cache.quantized()) tables.scale_pages.assign(entries, 0);
  for (std::size_t b = 0; b < run.size(); ++b) {
    const AttentionSegment& segment = run[b];
    const std::size_t row = b * static_cast<std::size_t>(tables.max_pages);
    const auto fill = [&](std::vector<std::int32_t>& table, std::span<const PageId> ids) {
      const std::size_t count =
          std::min(ids.size(), static_cast<std::size_t>(blocks_of(cache, segment)));
      for (std::size_t i = 0; i < count; ++i) table[row + i] = ids[i].value;
    };
    fill(tables.pages, segment.pages);
    if (cache.quantized()) fill(tables.scale_pages, segment.scale_pages);
    tables.partial_pages.push_back(segment.partial_page.value);
    tables.lengths.push_back(static_cast<std::int32_t>(segment.context_tokens));
  }
  return tables;
}

// Arrays of a call on their way to the device, as one.
class Outgoing {
 public:
  // `to` is where the values lie there, once they are sent; it must stay where it is.
  void add(const std::vector<std::int32_t>& values, const std::int32_t*& to) {
    places_.push_back({&to, words_.size()});
    words_.insert(words_.end(), values.begin(), values.end());
  }
  void send(ArgumentRing& arguments, Stream& stream) {
    if (places_.empty()) return;
    const std::int32_t* sent = arguments.send(std::span<const std::int32_t>(words_), stream);
    for (const Place& place : places_) *place.to = sent + place.at;
  }

 private:
  struct Place {
    const std::int32_t** to;
    std::size_t at;
  };
  std::vector<std::int32_t> words_;
  std::vector<Place> places_;
};

// Lists of a run, which lie on the device: how many, and how long they may be.
struct Lists {
  std::int64_t rows = 0;
  std::int64_t capacity = 1;
};

Lists lists_of(std::span<const AttentionSegment> run) {
  const Selection& chosen = *run.front().chosen;
  return {.rows = std::ssize(run) * chosen.lists,
          .capacity = std::max<std::int64_t>(1, chosen.capacity)};
}

// Whether `next` goes on where `segment` ends: in q, in the lists and the tables.
bool follows(const AttentionSegment& segment, const AttentionSegment& next) {
  return next.query_begin == segment.query_begin + 1 && next.chosen == segment.chosen &&
         (next.chosen == nullptr ? next.window == segment.window
                                 : next.chosen_row == segment.chosen_row + 1) &&
         next.tables == segment.tables &&
         (next.tables == nullptr || next.table_row == segment.table_row + 1);
}

// Whether one run serves both.
bool joins(Route route, const AttentionSegment& segment, const AttentionSegment& next) {
  if (route == Route::kPaged) return true;
  if (route == Route::kPagedListed) return next.chosen_row == segment.chosen_row;
  return follows(segment, next);
}

class Batch {
 public:
  Batch(const BatchAttention& call, const GpuMachine& machine, ArgumentRing& arguments,
        DeviceScratch& scratch, StepPlans& step_plans, Stream& stream)
      : call_(call),
        machine_(machine),
        arguments_(arguments),
        scratch_(scratch),
        step_plans_(step_plans),
        stream_(stream),
        handle_(stream.launches()) {}

  // Any queries, one kernel for the whole run: on tensor cores where it serves. With lists all
  // queries have the same ones.
  void paged(std::span<const AttentionSegment> run) {
    const KvLayerView& cache = call_.cache;
    require(call_.out.dtype == DType::kF32, "attention", "prompts are attended in F32",
            [&] { return shape_of(cache); });
    const std::int64_t group = call_.heads / cache.kv_heads;
    PagedAttention args = paged_arguments();
    const bool on_tensor_cores =
        prefill_attention_serves(cache.dtype, cache.partial_dtype, cache.head_dim,
                                 cache.page_tokens, group) &&
        prefill_attention_shared_bytes(cache.dtype, cache.head_dim) <=
            machine_.shared_bytes_per_block;
    const Selection* const chosen = run.front().chosen;
    require(chosen == nullptr ||
                (on_tensor_cores && chosen->lists == cache.kv_heads &&
                 chosen->all_from <= run.front().context_tokens - run.front().query_count),
            "attention",
            "queries that chose together need a list per KV head, behind what they chose",
            [&] { return shape_of(cache); });
    const std::int64_t block_rows =
        on_tensor_cores ? prefill_rows(cache.dtype, cache.head_dim) : kPagedRows;
    const SegmentTables* on_device = run.front().tables;
    const Tables tables = on_device == nullptr ? tables_of(run, cache) : Tables{};
    std::vector<PagedSegment> segments;
    std::int64_t query_blocks = 0;
    std::int64_t max_context = 0;
    for (std::size_t b = 0; b < run.size(); ++b) {
      if (run[b].query_count == 0) continue;
      segments.push_back({.query_begin = run[b].query_begin,
                          .query_count = run[b].query_count,
                          .context_tokens = run[b].context_tokens,
                          .window = run[b].window,
                          .pages_begin = on_device == nullptr
                                             ? static_cast<std::int64_t>(b) * tables.max_pages
                                             : run[b].table_row * on_device->max_pages,
                          .partial_page = run[b].partial_page.value,
                          .first_block = static_cast<std::int32_t>(query_blocks)});
      if (run[b].log_sums != nullptr) args.log_sums = run[b].log_sums;
      query_blocks += prefill_query_blocks(run[b].query_count, group, block_rows);
      max_context = std::max(max_context, run[b].context_tokens);
    }
    if (segments.empty()) return;
    arguments_.reserve(segments.size() * sizeof(PagedSegment) +
                           (tables.pages.size() + tables.scale_pages.size()) * sizeof(std::int32_t),
                       3, stream_);
    args.segments = send(segments);
    args.segment_count = std::ssize(segments);
    if (on_device != nullptr) {
      args.pages = on_device->pages;
      args.scale_pages = on_device->scale_pages;
      const KvLayerView layer = from_page(cache, run.front().table_layer);
      args.k = layer.k;
      args.v = layer.v;
    } else {
      Outgoing outgoing;
      outgoing.add(tables.pages, args.pages);
      if (cache.quantized()) outgoing.add(tables.scale_pages, args.scale_pages);
      outgoing.send(arguments_, stream_);
    }
    if (arguments_.announcing()) return;
    if (on_tensor_cores) {
      if (chosen != nullptr) max_context += kPrefillListGap;
      PrefillSplits splits =
          machine_.deterministic
              ? prefill_fixed_splits(max_context)
              : prefill_splits(query_blocks, cache.kv_heads, max_context, machine_.multiprocessors);
      const std::int64_t partials = prefill_partial_floats(query_blocks, block_rows, cache.kv_heads,
                                                           cache.head_dim, splits.count);
      if (chosen == nullptr) {
        args.partials = floats(partials);
      } else {
        // How many tokens lists have, the device alone knows.
        if (!machine_.deterministic) splits.tokens = 0;
        copy_listed(run.front(), segments.front(), partials, args);
      }
      prefill_attention(args, query_blocks, splits, machine_, handle_);
      return;
    }
    args.partials =
        floats(paged_attention_floats(query_blocks, cache.kv_heads, cache.head_dim, max_context));
    paged_attention(args, query_blocks, max_context, handle_);
  }

  // One query of each segment; the segments' rows of q are consecutive.
  void gather(std::span<const AttentionSegment> run, Route route) {
    const KvLayerView& cache = call_.cache;
    const auto sequences = std::ssize(run);
    const std::int64_t rows = sequences * cache.kv_heads;
    const std::int64_t group = call_.heads / cache.kv_heads;
    const Tables tables = run.front().tables == nullptr ? tables_of(run, cache) : Tables{};
    const bool lists_given = route == Route::kGatherChosen;
    const Lists lists = lists_given ? lists_of(run) : Lists{};
    GatherAttnArgs args;
    Outgoing outgoing;
    add_cache_and_tables(run, tables, args, outgoing);
    if (lists_given) {
      add_chosen(run.front(), lists, args);
    } else {
      constexpr std::int64_t kMost = std::numeric_limits<int>::max();
      args.window = static_cast<int>(std::min(run.front().window, kMost));
    }
    outgoing.send(arguments_, stream_);
    if (arguments_.announcing()) return;
    const PlanSplitsArgs split = splits(lists, args);
    const GatherScratch scratch =
        gather_scratch(sequences, call_.heads, cache.kv_heads, cache.head_dim, split.part_count,
                       cache.quantized());
    const GatherStatesLayout layout =
        gather_states_layout(rows, split.part_count, group, cache.head_dim, cache.quantized());
    std::byte* base = scratch_.at_least(static_cast<std::size_t>(scratch.bytes), stream_);
    const auto plan_bytes = static_cast<std::size_t>(scratch.plan_bytes);
    StepPlan* const of_step = plan_of_step(run.front(), split);
    args.plan = of_step != nullptr
                    ? of_step->of(split, run.front().query_begin, plan_bytes, stream_)
                    : plan_splits(split, base, plan_bytes, handle_);
    std::byte* states = base + plan_bytes;
    args.states = reinterpret_cast<float*>(states + layout.states_at);
    args.max_sum = reinterpret_cast<float*>(states + layout.max_sum_at);
    gather_attn(args, handle_);
    merge(run, args);
  }

 private:
  // Of scores in units of log2; 0: they are not capped.
  [[nodiscard]] float log2_cap() const { return call_.scale.cap * std::numbers::log2e_v<float>; }
  [[nodiscard]] float inverse_cap() const {
    return call_.scale.cap > 0.0F ? 1.0F / log2_cap() : 0.0F;
  }

  // Everything but the segments and their tables.
  [[nodiscard]] PagedAttention paged_arguments() const {
    const KvLayerView& cache = call_.cache;
    PagedAttention args;
    args.q = static_cast<const float*>(call_.q.data);
    args.q_stride = call_.q.row_stride;
    args.heads = call_.heads;
    args.k = cache.k;
    args.v = cache.v;
    args.dtype = cache.dtype;
    args.scales = cache.scales;
    args.partial_k = cache.partial_k;
    args.partial_v = cache.partial_v;
    args.partial_dtype = cache.partial_dtype;
    args.page_tokens = cache.page_tokens;
    args.kv_heads = cache.kv_heads;
    args.head_dim = cache.head_dim;
    args.scale = call_.scale.factor;
    args.cap = log2_cap();
    args.inverse_cap = inverse_cap();
    args.sinks = call_.scale.sinks;
    args.out = static_cast<float*>(call_.out.data);
    args.out_stride = call_.out.row_stride;
    return args;
  }

  // Everything but the lists, the plan and where results go.
  void add_cache_and_tables(std::span<const AttentionSegment> run, const Tables& tables,
                            GatherAttnArgs& args, Outgoing& outgoing) const {
    const KvLayerView& cache = call_.cache;
    args.q = static_cast<const float*>(call_.q.data) + run.front().query_begin * call_.q.row_stride;
    args.q_stride = call_.q.row_stride;
    args.sequences = static_cast<int>(run.size());
    args.heads = static_cast<int>(call_.heads);
    args.scale = call_.scale.factor;
    args.cap = log2_cap();
    args.inverse_cap = inverse_cap();
    args.cache = cache_of(cache, "attention");
    if (const SegmentTables* on_device = run.front().tables) {
      const std::int64_t row = run.front().table_row;
      const KvLayerView layer = from_page(cache, run.front().table_layer);
      args.cache.k = layer.k;
      args.cache.v = layer.v;
      args.tables.max_pages = static_cast<int>(on_device->max_pages);
      args.tables.pages = on_device->pages + row * on_device->max_pages;
      args.lengths = on_device->lengths + row;
      if (!cache.quantized()) return;
      args.tables.scale_pages = on_device->scale_pages + row * on_device->max_pages;
      args.tables.partial_pages = on_device->partial_pages_at(row, run.front().table_layer);
      if (args.tables.partial_pages != nullptr) return;
      std::vector<std::int32_t> partial_pages;
      for (const AttentionSegment& segment : run) {
        partial_pages.push_back(segment.partial_page.value);
      }
      outgoing.add(partial_pages, args.tables.partial_pages);
      return;
    }
    outgoing.add(tables.pages, args.tables.pages);
    args.tables.max_pages = static_cast<int>(tables.max_pages);
    if (cache.quantized()) {
      outgoing.add(tables.scale_pages, args.tables.scale_pages);
      outgoing.add(tables.partial_pages, args.tables.partial_pages);
    }
    outgoing.add(tables.lengths, args.lengths);
  }

  // Tokens lie where the page tables say, or in their slots.
  void add_chosen(const AttentionSegment& first, const Lists& lists, GatherAttnArgs& args) const {
    const Selection& chosen = *first.chosen;
    const std::int64_t list = first.chosen_row * chosen.lists;
    args.source = TokenSource::kList;
    args.list_rows = static_cast<int>(lists.rows);
    args.list_capacity = static_cast<int>(lists.capacity);
    args.tokens = chosen.tokens + list * chosen.capacity;
    args.list_counts = chosen.counts + list;
    if (chosen.scores.values != nullptr) {
      args.scores = chosen.scores.values + first.chosen_row * call_.heads * chosen.capacity;
    }
    if (chosen.slots == nullptr) return;
    // Slots count from the cache's first page, whatever the tables count from.
    args.cache.k = call_.cache.k;
    args.cache.v = call_.cache.v;
    args.slots = chosen.slots + list * chosen.capacity;
  }

  // How the tokens of all rows are divided.
  [[nodiscard]] PlanSplitsArgs splits(const Lists& lists, const GatherAttnArgs& args) const {
    const KvLayerView& cache = call_.cache;
    const bool lists_given = lists.rows > 0;
    PlanSplitsArgs split;
    split.counts = lists_given ? args.list_counts : args.lengths;
    split.rows = args.sequences * args.cache.kv_heads;
    split.rows_per_count = lists_given ? split.rows / args.list_rows : args.cache.kv_heads;
    split.unit_tokens = kGatherUnitTokens;
    split.window = args.window;
    if (machine_.deterministic) {
      split.mode = SplitMode::kFixed;
      split.part_count = static_cast<int>(unit_count(lists, split.rows_per_count));
    } else {
      split.row_overhead = kRowOverhead;
      split.part_count = static_cast<int>(gather_attn_parts(
          machine_.multiprocessors, machine_.shared_bytes_per_multiprocessor, cache.head_dim,
          call_.heads / cache.kv_heads, cache.quantized(), lists_given));
    }
    return split;
  }

  // The plan that serves every layer of the step; null: there is none.
  [[nodiscard]] StepPlan* plan_of_step(const AttentionSegment& first, const PlanSplitsArgs& split) {
    if (first.chosen == nullptr) {
      if (split.counts != step_plans_.lengths) return nullptr;
      return split.window > 0 ? &step_plans_.windows : &step_plans_.contexts;
    }
    return first.chosen->same_counts_in_step && !machine_.deterministic ? &step_plans_.lists
                                                                        : nullptr;
  }

  // The parts' states of each row to its attended values, and to what makes weights of its scores.
  void merge(std::span<const AttentionSegment> run, const GatherAttnArgs& args) {
    MergeStatesArgs merge;
    merge.sequences = args.sequences;
    merge.heads = args.heads;
    merge.kv_heads = args.cache.kv_heads;
    merge.head_dim = args.cache.head_dim;
    merge.states = args.states;
    merge.max_sum = args.max_sum;
    merge.plan = args.plan;
    merge.sinks = call_.scale.sinks;
    if (const Selection* chosen = run.front().chosen; chosen != nullptr) {
      const std::int64_t row = run.front().chosen_row;
      if (chosen->alpha != nullptr) merge.alpha = chosen->alpha + row * call_.heads;
      if (chosen->means != nullptr) merge.means = chosen->means + row;
      merge.layer = chosen->layer;
      if (chosen->scores.softmax != nullptr) {
        merge.softmax = chosen->scores.softmax + 2 * row * call_.heads;
      }
    }
    merge.partial_results = call_.cache.quantized();
    merge.long_rows = machine_.deterministic || args.plan.part_count > 4 * args.plan.rows;
    merge.out = call_.out;
    merge.out.data = static_cast<std::byte*>(call_.out.data) +
                     run.front().query_begin * call_.out.row_stride *
                         static_cast<std::int64_t>(dtype_bytes(call_.out.dtype));
    merge_states(merge, handle_);
  }

  // Copies what the lists have in front of all_from, and makes room for `partials` floats.
  void copy_listed(const AttentionSegment& first, const PagedSegment& sent, std::int64_t partials,
                   PagedAttention& args) {
    const KvLayerView& cache = call_.cache;
    const Selection& chosen = *first.chosen;
    const std::int64_t room = std::max<std::int64_t>(1, chosen.all_from);
    const ListedLayout layout =
        listed_layout(cache.kv_heads, room, cache.head_dim, cache.quantized());
    std::byte* base = scratch_.at_least(
        static_cast<std::size_t>(layout.bytes + partials * std::int64_t{sizeof(float)}), stream_);
    args.partials = reinterpret_cast<float*>(base + layout.bytes);
    auto* counts = reinterpret_cast<std::int32_t*>(base + layout.counts_at);
    args.listed = {.k = base,
                   .v = base + layout.v_at,
                   .room = room,
                   .counts = counts,
                   .all_from = chosen.all_from};
    const std::int64_t list = first.chosen_row * chosen.lists;
    ListedRows rows;
    rows.cache = cache_of(cache, "attention");
    // Tables may count from another page.
    rows.cache.k = const_cast<void*>(args.k);
    rows.cache.v = const_cast<void*>(args.v);
    rows.pages = args.pages + sent.pages_begin;
    if (cache.quantized()) rows.scale_pages = args.scale_pages + sent.pages_begin;
    rows.own_block = (first.context_tokens - 1) / cache.page_tokens;
    rows.partial_page = first.partial_page.value;
    rows.tokens = chosen.tokens + list * chosen.capacity;
    rows.counts = chosen.counts + list;
    rows.capacity = chosen.capacity;
    rows.all_from = chosen.all_from;
    copy_listed_rows(rows, base, base + layout.v_at, room, counts, handle_);
  }

  float* floats(std::int64_t count) {
    return reinterpret_cast<float*>(
        scratch_.at_least(static_cast<std::size_t>(count) * sizeof(float), stream_));
  }

  template <class T>
  const T* send(const std::vector<T>& values) {
    return arguments_.send(std::span<const T>(values), stream_);
  }

  // Of lists: deterministic runs attend whole contexts by the prefill kernel.
  static std::int64_t unit_count(const Lists& lists, std::int64_t rows_per_count) {
    return 1 + lists.rows * rows_per_count * ceil_div(lists.capacity, kGatherUnitTokens);
  }

  const BatchAttention& call_;
  const GpuMachine& machine_;
  ArgumentRing& arguments_;
  DeviceScratch& scratch_;
  StepPlans& step_plans_;
  Stream& stream_;
  StreamHandle handle_;
};

}  // namespace

bool gather_serves(const KvLayerView& cache) {
  const DType type = cache.quantized() ? cache.partial_dtype : cache.dtype;
  return (type == DType::kF16 || type == DType::kBF16) && gpu_takes_pages(cache.page_tokens) &&
         cache.head_dim <= 256 && cache.head_dim % 8 == 0;
}

void attend_batch(const BatchAttention& call, std::span<const AttentionSegment> segments,
                  const GpuMachine& machine, ArgumentRing& arguments, DeviceScratch& scratch,
                  StepPlans& step_plans, Stream& stream) {
  Batch batch(call, machine, arguments, scratch, step_plans, stream);
  std::size_t begin = 0;
  while (begin < segments.size()) {
    const Route route = route_of(segments[begin], call.cache, machine.deterministic);
    std::size_t end = begin + 1;
    while (end < segments.size() &&
           route_of(segments[end], call.cache, machine.deterministic) == route &&
           segments[end].tables == segments[begin].tables &&
           joins(route, segments[end - 1], segments[end])) {
      ++end;
    }
    const auto run = segments.subspan(begin, end - begin);
    if (route == Route::kPaged || route == Route::kPagedListed) {
      batch.paged(run);
    } else if (run.front().query_count == 1) {
      batch.gather(run, route);
    }
    begin = end;
  }
}

}  // namespace triphase::cuda
