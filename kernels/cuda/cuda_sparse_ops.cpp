#include "kernels/cuda/cuda_sparse_ops.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/cuda/argument_ring.h"
#include "kernels/cuda/cache_view.h"
#include "kernels/cuda/clusters.h"
#include "kernels/cuda/device_scratch.h"
#include "kernels/cuda/host_staging.h"
#include "kernels/cuda/kv_channels.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/page_bounds.h"
#include "kernels/cuda/prefill_colsum.h"
#include "kernels/cuda/score_rows.h"
#include "kernels/cuda/select_rows.h"
#include "kernels/cuda/sparq_select.h"
#include "kernels/cuda/value_mean.h"
#include "kernels/cuda/weight_window.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

std::int64_t blocks_of(const KvLayerView& cache, const AttentionSegment& keys) {
  return (keys.context_tokens + cache.page_tokens - 1) / cache.page_tokens;
}

std::int64_t pages_of(std::int64_t context, std::int64_t page_tokens) {
  return (context + page_tokens - 1) / page_tokens;
}

std::string shape_of(const KvLayerView& cache, const AttentionSegment& keys) {
  return shape_text({{"context_tokens", keys.context_tokens},
                     {"pages", static_cast<std::int64_t>(keys.pages.size())},
                     {"page_tokens", cache.page_tokens},
                     {"kv_heads", cache.kv_heads},
                     {"head_dim", cache.head_dim}}) +
         ", cache " + std::string(dtype_name(cache.dtype));
}

void check_keys(const KvLayerView& cache, const AttentionSegment& keys, const char* operation) {
  const auto check = [&](bool condition, const char* what) {
    require(condition, operation, what, [&] { return shape_of(cache, keys); });
  };
  check(cache.k != nullptr && cache.page_tokens > 0 && cache.kv_heads > 0 && cache.head_dim > 0 &&
            (cache.kt == nullptr || (cache.kt_ready != nullptr && cache.kt_run == 1)),
        "a cache without keys or sizes");
  check(keys.context_tokens > 0, "no context");
  const std::int64_t blocks = blocks_of(cache, keys);
  const std::int64_t closed = cache.quantized() ? blocks - 1 : blocks;
  check(static_cast<std::int64_t>(keys.pages.size()) >= closed, "a segment's pages");
  check(!cache.quantized() || (static_cast<std::int64_t>(keys.scale_pages.size()) >= closed &&
                               keys.partial_page.valid()),
        "a segment's scale pages or partial page");
}

std::string shape_of(const ConstMatrix& q, std::int64_t row, std::int64_t heads,
                     std::int64_t kv_heads) {
  return shape_text({{"q", q}}) + ", " +
         shape_text({{"row", row}, {"heads", heads}, {"kv_heads", kv_heads}});
}

template <class Shape>
void check_query(const ConstMatrix& q, std::int64_t row, std::int64_t heads, std::int64_t kv_heads,
                 const char* operation, const Shape& shape) {
  require(q.data != nullptr && q.dtype == DType::kF32 && row >= 0 && row < q.rows && kv_heads > 0 &&
              heads > 0 && heads % kv_heads == 0 && q.cols % heads == 0,
          operation, "a row of whole groups of heads, in F32", shape);
}

void check_segment(const ConstMatrix& q, std::int64_t heads, const KvLayerView& cache,
                   const AttentionSegment& segment, std::int64_t first_query,
                   const char* operation) {
  const auto check = [&](bool condition, const char* what) {
    require(condition, operation, what, [&] {
      return shape_of(cache, segment) + ", " +
             shape_of(q, segment.query_begin, heads, cache.kv_heads) + ", " +
             shape_text({{"query_count", segment.query_count}, {"first_query", first_query}});
    });
  };
  check(q.data != nullptr && q.dtype == DType::kF32 && heads > 0 && heads % cache.kv_heads == 0 &&
            q.cols == heads * cache.head_dim,
        "q must be F32 rows of the cache's heads");
  check(segment.query_begin >= 0 && segment.query_count >= 0 &&
            segment.query_count <= segment.context_tokens &&
            segment.query_begin + segment.query_count <= q.rows && first_query >= 0 &&
            segment.selection.empty(),
        "a segment's rows");
}

std::string shape_of(const WeightWindow& window) {
  return shape_text({{"tokens", window.tokens}, {"room", window.room}});
}

void check_window(const WeightWindow& window, const char* operation) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  require(window.sums != nullptr && window.tokens > 0 && window.tokens < kLargest &&
              window.room > 0 && window.room < kLargest &&
              (window.entries == nullptr) != (window.buckets == nullptr),
          operation, "a window without memory or sizes", [&] { return shape_of(window); });
}

void check_step(const WeightWindow& window, const WindowStep& step, std::int64_t context,
                const char* operation) {
  check_window(window, operation);
  require(context >= 0 && context <= window.tokens && step.count >= 0 && step.count <= context &&
              step.begin >= 0 && step.begin < window.room && step.expired_begin >= 0 &&
              step.expired_begin < window.room && step.expired >= 0 &&
              step.expired + (window.exact() ? step.count : 0) <= window.room,
          operation, "a step beyond its window", [&] {
            return shape_of(window) + ", " +
                   shape_text({{"context", context},
                               {"begin", step.begin},
                               {"count", step.count},
                               {"expired", step.expired}});
          });
}

// sqrt(head_dim) / tau where it is the same for all queries, else 0.
float sharpness_of(const ChannelChoice& choice, std::int64_t head_dim) {
  switch (choice.temperature) {
    case ChannelTemperature::kHeadDim:
      return 1.0F;
    case ChannelTemperature::kRank:
      return std::sqrt(static_cast<float>(head_dim) / static_cast<float>(choice.rank));
    default:
      return 0.0F;
  }
}

class CudaSparseOpsOnStreams final : public CudaSparseOps {
 public:
  CudaSparseOpsOnStreams(Device& device, Device& host, CudaSparseSettings settings)
      : device_(&device),
        settings_(std::move(settings)),
        arguments_(device, host, static_cast<std::size_t>(kCudaSparseRingBytes)),
        staging_(device, host),
        scratch_(device),
        lists_(device) {}

  [[nodiscard]] Device& memory() override { return *device_; }

  void reserve(const OpsShape& shape, Stream& stream) override {
    const CudaScratchBytes bytes = cuda_scratch_bytes(settings_.machine, shape);
    (void)scratch_.at_least(static_cast<std::size_t>(bytes.selection), stream);
    (void)lists_.at_least(static_cast<std::size_t>(bytes.lists), stream);
  }

  void score_keys(ConstMatrix q, std::int64_t row, std::int64_t heads, const KvLayerView& cache,
                  const AttentionSegment& keys, float scale, float* probabilities,
                  std::int64_t stride, Workspace, Stream& stream) override {
    AttentionSegment segment = keys;
    segment.query_begin = row;
    check_row(q, heads, cache, segment, "score_keys");
    require(probabilities != nullptr && stride >= keys.context_tokens, "score_keys",
            "no room for the probabilities", [&] { return shape_of(cache, keys); });
    const Call call = prepare(q, heads, cache, {&segment, 1}, {}, Read::kRows, true, stream);
    const ScoreLogits logits = logits_of(call);
    const StreamHandle handle = settings_.stream_handle(stream);
    score_exact(call.keys, call.queries, scale, logits, handle);
    auto* scores = call.at<float>(call.scratch.scores_at);
    group_scores(logits, call.keys.lengths, cache.kv_heads, cache.kv_heads, heads / cache.kv_heads,
                 keys.context_tokens, GroupReduce::kNone, scores,
                 call.at<float>(call.scratch.totals_at), handle);
    staging_.to_host(
        rows_of(probabilities, stride, scores, keys.context_tokens, heads, keys.context_tokens),
        stream);
  }

  void transpose_keys(const KvLayerView& cache, std::span<const AttentionSegment> rows,
                      Stream& stream) override {
    for (const AttentionSegment& row : rows) check_keys(cache, row, "transpose_keys");
    if (cache.kt == nullptr) return;
    std::vector<std::int32_t> from;
    std::vector<std::int32_t> to;
    for (const AttentionSegment& keys : rows) {
      // INT8: the query's own block is read unquantized, and its page may not be written yet.
      const std::int64_t full =
          cache.quantized() ? blocks_of(cache, keys) - 1 : keys.context_tokens / cache.page_tokens;
      for (std::size_t i = 0; i < static_cast<std::size_t>(full); ++i) {
        const PageId page = column_page(cache, keys, i);
        if (!page.valid() || written_column_page(cache, keys, i).valid()) continue;
        from.push_back(keys.pages[i].value);
        to.push_back(page.value);
        // Whatever reads them comes later on the same stream.
        cache.kt_ready[page.index()] = 1;
      }
    }
    if (from.empty()) return;
    const auto count = static_cast<int>(from.size());
    from.insert(from.end(), to.begin(), to.end());
    KvCache view;
    view.k = cache.k;
    view.dtype = cache.dtype;
    view.page_tokens = static_cast<int>(cache.page_tokens);
    view.kv_heads = static_cast<int>(cache.kv_heads);
    view.head_dim = static_cast<int>(cache.head_dim);
    arguments_.reserve(from.size() * sizeof(std::int32_t), 1, stream);
    const std::int32_t* sent = arguments_.send(std::span<const std::int32_t>(from), stream);
    kv_write_channels(sent, sent + count, count, view, cache.kt, settings_.stream_handle(stream));
  }

  [[nodiscard]] Selection choose_by_channels(ConstMatrix q, std::int64_t heads,
                                             const KvLayerView& cache,
                                             std::span<const AttentionSegment> rows, float scale,
                                             std::span<const ChannelChoice> choices, bool shares,
                                             Workspace, Stream& stream) override {
    limits_.clear();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      check_row(q, heads, cache, rows[i], "choose_by_channels");
      check_choice(choices, i, cache, rows[i]);
      limits_.push_back({choices[i].tokens, choices[i].recent});
    }
    if (rows.empty()) return {};
    const ChannelChoice& choice = choices.front();
    const SparqScale sparq{scale, sharpness_of(choice, cache.head_dim)};
    const StreamHandle handle = settings_.stream_handle(stream);
    const Lists lists = make_lists(rows.size(), heads, cache.kv_heads, stream);
    columns_.clear();
    for (const AttentionSegment& row : rows) columns_.push_back(all_transposed(cache, row));
    const bool fused = fits_one_block(cache, heads, rows, choice);
    for_parts(heads, cache, rows, !fused, stream, [&](std::size_t first, std::size_t count) {
      const Call call = prepare(q, heads, cache, rows.subspan(first, count),
                                std::span(limits_).subspan(first, count),
                                columns_[first] ? Read::kColumns : Read::kRows, !fused, stream);
      const Lists part = lists.from(first, heads, cache.kv_heads);
      if (fused) {
        choose_fused(call, sparq, choice, part, handle);
        return;
      }
      auto* channels = call.at<std::int32_t>(call.scratch.channels_at);
      auto* factors = call.at<float>(call.scratch.factors_at);
      choose_channels(call.queries, call.keys.sequences, cache.kv_heads, cache.head_dim,
                      choice.rank, sparq, channels, factors, handle);
      const ScoreLogits logits = logits_of(call);
      score_sparq(call.keys, call.queries, channels, factors, choice.rank, logits, handle);
      rank_and_select(call,
                      choice.sum_logits ? GroupReduce::kLogitSum : GroupReduce::kProbabilitySum,
                      part, handle);
    });
    return lists.selection(rows.size(), cache.kv_heads, shares);
  }

  [[nodiscard]] Selection choose_by_keys(ConstMatrix q, std::int64_t heads,
                                         const KvLayerView& cache,
                                         std::span<const AttentionSegment> rows, float scale,
                                         std::span<const std::int64_t> budgets, Workspace,
                                         Stream& stream) override {
    limits_.clear();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      check_row(q, heads, cache, rows[i], "choose_by_keys");
      require(
          budgets.size() == rows.size() && budgets[i] > 0 && budgets[i] <= rows[i].context_tokens,
          "choose_by_keys", "a budget beyond the context",
          [&] { return shape_of(cache, rows[i]); });
      limits_.push_back({budgets[i], 1});
    }
    if (rows.empty()) return {};
    const StreamHandle handle = settings_.stream_handle(stream);
    const Lists lists = make_lists(rows.size(), heads, cache.kv_heads, stream);
    columns_.assign(rows.size(), false);
    for_parts(heads, cache, rows, true, stream, [&](std::size_t first, std::size_t count) {
      const Call call =
          prepare(q, heads, cache, rows.subspan(first, count),
                  std::span(limits_).subspan(first, count), Read::kRows, true, stream);
      score_exact(call.keys, call.queries, scale, logits_of(call), handle);
      rank_and_select(call, GroupReduce::kProbabilitySum, lists.from(first, heads, cache.kv_heads),
                      handle);
    });
    return lists.selection(rows.size(), cache.kv_heads, true);
  }

  void accumulate_columns(ConstMatrix q, std::int64_t heads, const KvLayerView& cache,
                          const AttentionSegment& segment, std::int64_t first_query, float scale,
                          float* sums, std::int64_t stride, Workspace, Stream& stream) override {
    check_keys(cache, segment, "accumulate_columns");
    check_segment(q, heads, cache, segment, first_query, "accumulate_columns");
    require(sums != nullptr && stride >= segment.context_tokens, "accumulate_columns",
            "no room for the sums", [&] {
              return shape_of(cache, segment) + ", " + shape_text({{"stride", stride}});
            });
    if (first_query >= segment.query_count) return;
    const std::int64_t context = segment.context_tokens;
    const CudaSparseScratch scratch = scratch_of(heads, cache.kv_heads, cache.head_dim, context);
    std::byte* base = scratch_.at_least(static_cast<std::size_t>(scratch.bytes), stream);
    const Tables tables = send_tables(cache, {&segment, 1}, {}, false, stream);
    auto* log_sums = reinterpret_cast<float*>(base + scratch.log_sums_at);
    auto* partials = reinterpret_cast<float*>(base + scratch.log_partials_at);
    auto* columns = reinterpret_cast<float*>(base + scratch.scores_at);

    // Added to what is there, so that one order of additions holds over all chunks.
    staging_.to_device(rows_of(columns, context, sums, stride, cache.kv_heads, context), stream);
    const StreamHandle handle = settings_.stream_handle(stream);
    for (std::int64_t query = first_query; query < segment.query_count;
         query += kColumnSliceQueries) {
      const PrefillColumns call = columns_of(q, heads, cache, segment, query, scale, tables);
      prefill_log_sums(call, log_sums, partials, handle);
      prefill_colsum(call, log_sums, columns, context, handle);
    }
    staging_.to_host(rows_of(sums, stride, columns, context, cache.kv_heads, context), stream);
  }

  void clear_weights(std::span<const WeightWindow> windows, Stream& stream) override {
    std::int64_t most_words = 0;
    for (const WeightWindow& window : windows) {
      check_window(window, "clear_weights");
      most_words = std::max(
          most_words,
          window.exact() ? window.tokens : std::max<std::int64_t>(1, window.room) * window.tokens);
    }
    if (windows.empty()) return;
    cuda::clear_weights(arguments_.send(windows, stream), static_cast<std::int64_t>(windows.size()),
                        most_words, settings_.stream_handle(stream));
  }

  void add_weights(const Selection& attended, const float* weights, std::span<const WeightRow> rows,
                   Stream& stream) override {
    if (rows.empty()) return;
    const auto check = [&](bool condition, const char* what, const WeightRow& row) {
      require(condition, "add_weights", what, [&] {
        return shape_of(row.window) + ", " +
               shape_text({{"rows", attended.rows},
                           {"capacity", attended.capacity},
                           {"attended", row.attended},
                           {"count", row.step.count},
                           {"context", row.context}});
      });
    };
    std::int64_t most_tokens = 0;
    for (const WeightRow& row : rows) {
      check_step(row.window, row.step, row.context, "add_weights");
      check(attended.lists == 1 && row.attended >= 0 && row.attended < attended.rows &&
                row.step.count <= attended.capacity,
            "a row beyond the selection", row);
      const std::int64_t leaving = row.window.exact()     ? row.step.expired
                                   : row.step.expired > 0 ? row.context
                                                          : 0;
      most_tokens = std::max({most_tokens, row.step.count, leaving});
    }
    cuda::add_weights(arguments_.send(rows, stream), static_cast<std::int64_t>(rows.size()),
                      attended.tokens, weights, attended.capacity, most_tokens,
                      settings_.stream_handle(stream));
  }

  void add_prompt_rows(ConstMatrix q, std::int64_t heads, const KvLayerView& cache,
                       const AttentionSegment& segment, std::int64_t first_query, float scale,
                       const WeightWindow& window, std::span<const WindowStep> steps, Workspace,
                       Stream& stream) override {
    check_keys(cache, segment, "add_prompt_rows");
    const std::int64_t context = segment.context_tokens;
    check_segment(q, heads, cache, segment, first_query, "add_prompt_rows");
    const auto check = [&](bool condition, const char* what) {
      require(condition, "add_prompt_rows", what, [&] {
        return shape_of(cache, segment) + ", " + shape_of(window) + ", " +
               shape_text({{"query_count", segment.query_count},
                           {"first_query", first_query},
                           {"steps", static_cast<std::int64_t>(steps.size())}});
      });
    };
    check(static_cast<std::int64_t>(steps.size()) == segment.query_count - first_query,
          "not a step for each query");
    if (steps.empty()) return;
    std::vector<std::int32_t> begins;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const std::int64_t row = context - static_cast<std::int64_t>(steps.size() - 1 - i);
      check_step(window, steps[i], row, "add_prompt_rows");
      check(steps[i].count == row && steps[i].expired == 0,
            "a row that is not dense, or in which others expire");
      begins.push_back(static_cast<std::int32_t>(steps[i].begin));
    }
    const CudaSparseScratch scratch = scratch_of(heads, cache.kv_heads, cache.head_dim, context);
    std::byte* base = scratch_.at_least(static_cast<std::size_t>(scratch.bytes), stream);
    const Tables tables = send_tables(cache, {&segment, 1}, {}, false, stream, begins);
    auto* log_sums = reinterpret_cast<float*>(base + scratch.log_sums_at);
    auto* partials = reinterpret_cast<float*>(base + scratch.log_partials_at);
    const StreamHandle handle = settings_.stream_handle(stream);
    for (std::int64_t query = first_query; query < segment.query_count;
         query += kColumnSliceQueries) {
      const PrefillColumns call = columns_of(q, heads, cache, segment, query, scale, tables);
      prefill_log_sums(call, log_sums, partials, handle);
      cuda::add_prompt_rows(call, log_sums, window, tables.more + (query - first_query), handle);
    }
  }

  Selection choose_recent_and_heaviest(std::span<const WindowChoice> rows,
                                       Stream& stream) override {
    if (rows.empty()) return {};
    std::int64_t longest = 0;
    std::int64_t capacity = 0;
    for (const WindowChoice& row : rows) {
      check_window(row.window, "choose_recent_and_heaviest");
      require(row.context > 0 && row.context <= row.window.tokens && row.local >= 0 &&
                  row.local <= std::min(row.total, row.context),
              "choose_recent_and_heaviest", "a choice beyond the context", [&] {
                return shape_of(row.window) + ", " +
                       shape_text(
                           {{"context", row.context}, {"local", row.local}, {"total", row.total}});
              });
      longest = std::max(longest, row.context);
      capacity = std::max(capacity, std::min(row.total, row.context));
    }
    const auto count = static_cast<std::int64_t>(rows.size());
    // Each row's sums, then its length, total and local: one array on its way.
    std::vector<std::int64_t> words(static_cast<std::size_t>(count + (3 * count + 1) / 2));
    auto* numbers = reinterpret_cast<std::int32_t*>(words.data() + count);
    for (std::int64_t i = 0; i < count; ++i) {
      const WindowChoice& row = rows[static_cast<std::size_t>(i)];
      words[static_cast<std::size_t>(i)] =
          static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(row.window.sums));
      numbers[i] = static_cast<std::int32_t>(row.context);
      numbers[count + i] = static_cast<std::int32_t>(std::min(row.total, row.context));
      numbers[2 * count + i] = static_cast<std::int32_t>(row.local);
    }
    const std::int64_t* sent = arguments_.send(std::span<const std::int64_t>(words), stream);
    const auto* sent_numbers = reinterpret_cast<const std::int32_t*>(sent + count);
    const CudaListLayout layout = cuda_list_layout(count, 1, capacity, 0);
    std::byte* lists = lists_.at_least(static_cast<std::size_t>(layout.bytes), stream);
    auto* tokens = reinterpret_cast<std::int32_t*>(lists + layout.tokens_at);
    auto* counts = reinterpret_cast<std::int32_t*>(lists + layout.counts_at);
    auto* scores = reinterpret_cast<float*>(
        scratch_.at_least(static_cast<std::size_t>(longest) * sizeof(float), stream));
    const StreamHandle handle = settings_.stream_handle(stream);
    // As many rows at a time as there is room for.
    const auto room = static_cast<std::int64_t>(scratch_.bytes() / sizeof(float)) / longest;
    for (std::int64_t first = 0; first < count; first += room) {
      const std::int64_t part = std::min(room, count - first);
      window_scores(reinterpret_cast<const std::int64_t* const*>(sent) + first,
                    sent_numbers + first, part, longest, scores, longest, handle);
      select_top({.scores = scores,
                  .score_stride = longest,
                  .lengths = sent_numbers + first,
                  .rows = part,
                  .rows_per_sequence = 1,
                  .max_length = longest,
                  .locals = sent_numbers + 2 * count + first,
                  .ks = sent_numbers + count + first,
                  .indices = tokens + first * capacity,
                  .capacity = capacity,
                  .counts = counts + first},
                 capacity, handle);
    }
    return {.rows = count, .capacity = capacity, .tokens = tokens, .counts = counts};
  }

  void bound_pages(const KvLayerView& cache, std::span<const AttentionSegment> rows,
                   std::span<const PageBounds> bounds, std::int64_t page_tokens,
                   Stream& stream) override {
    const auto shape = [&](const AttentionSegment& row) {
      return shape_of(cache, row) + ", " + shape_text({{"tokens", page_tokens}});
    };
    if (rows.empty()) return;
    std::vector<std::int32_t> first_pages;
    std::vector<float*> places;
    BoundPages call;
    call.tokens = page_tokens;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      check_keys(cache, rows[i], "bound_pages");
      require(rows.size() == bounds.size() && page_tokens > 0 && bounds[i].data != nullptr &&
                  bounds[i].first_token >= 0,
              "bound_pages", "no bounds, or a page without tokens", [&] { return shape(rows[i]); });
      const std::int64_t first = bounds[i].first_token / page_tokens;
      first_pages.push_back(static_cast<std::int32_t>(first));
      places.push_back(bounds[i].data);
      call.most_pages =
          std::max(call.most_pages, pages_of(rows[i].context_tokens, page_tokens) - first);
    }
    if (call.most_pages <= 0) return;
    const Tables tables = send_tables(cache, rows, {}, false, stream);
    arguments_.reserve(places.size() * (sizeof(float*) + sizeof(std::int32_t)), 2, stream);
    call.bounds = arguments_.send(std::span<float* const>(places), stream);
    call.first_pages = arguments_.send(std::span<const std::int32_t>(first_pages), stream);
    cuda::bound_pages(score_keys_of(cache, tables), call, settings_.stream_handle(stream));
  }

  [[nodiscard]] Selection choose_by_pages(ConstMatrix q, std::int64_t heads, std::int64_t kv_heads,
                                          std::span<const AttentionSegment> rows,
                                          std::span<const PageChoice> choices,
                                          std::int64_t page_tokens, Stream& stream) override {
    limits_.clear();
    std::int64_t longest = 0;
    std::int64_t most_pages = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::int64_t context = rows[i].context_tokens;
      const auto shape = [&] {
        return shape_of(q, rows[i].query_begin, heads, kv_heads) + ", " +
               shape_text({{"context_tokens", context}, {"tokens", page_tokens}});
      };
      check_query(q, rows[i].query_begin, heads, kv_heads, "choose_by_pages", shape);
      require(rows.size() == choices.size() && page_tokens > 0 && choices[i].bounds != nullptr &&
                  choices[i].pages > 0 && choices[i].pages <= pages_of(context, page_tokens),
              "choose_by_pages", "no bounds, or more pages than there are", shape);
      limits_.push_back({std::min(choices[i].pages * page_tokens, context), choices[i].pages});
      longest = std::max(longest, context);
      most_pages = std::max(most_pages, choices[i].pages);
    }
    if (rows.empty()) return {};
    const Lists lists = make_lists(rows.size(), heads, kv_heads, stream);
    const std::int64_t stride = pages_of(longest, page_tokens);
    // Of a row: scores, chosen pages and how many they are.
    const std::int64_t scores_bytes = cuda_region_bytes(4 * kv_heads * stride);
    const std::int64_t pages_bytes = cuda_region_bytes(4 * kv_heads * most_pages);
    const std::int64_t row_bytes = scores_bytes + pages_bytes + cuda_region_bytes(4 * kv_heads);
    (void)scratch_.at_least(static_cast<std::size_t>(row_bytes), stream);
    const std::size_t most = scratch_.bytes() / static_cast<std::size_t>(row_bytes);
    const StreamHandle handle = settings_.stream_handle(stream);
    columns_.assign(rows.size(), false);
    for_runs(rows, most, [&](std::size_t first, std::size_t run) {
      const auto count = static_cast<std::int64_t>(run);
      std::byte* base = scratch_.at_least(0, stream);
      auto* scores = reinterpret_cast<float*>(base);
      auto* pages = reinterpret_cast<std::int32_t*>(base + count * scores_bytes);
      auto* counts = reinterpret_cast<std::int32_t*>(base + count * (scores_bytes + pages_bytes));
      const QuestTables tables = send_quest_tables(
          rows.subspan(first, run), choices.subspan(first, run), page_tokens, stream);
      const std::int64_t head_dim = q.cols / heads;
      score_quest({.bounds = tables.bounds,
                   .lengths = tables.lengths,
                   .sequences = count,
                   .max_length = longest,
                   .tokens = page_tokens,
                   .kv_heads = kv_heads,
                   .head_dim = head_dim},
                  query_of(q, rows[first].query_begin, heads), scores, stride, handle);
      select_top({.scores = scores,
                  .score_stride = stride,
                  .lengths = tables.pages,
                  .rows = count * kv_heads,
                  .rows_per_sequence = kv_heads,
                  .max_length = stride,
                  .local = 1,
                  .ks = tables.ks,
                  .indices = pages,
                  .capacity = most_pages,
                  .counts = counts},
                 most_pages, handle);
      const Lists part = lists.from(first, heads, kv_heads);
      expand_pages(pages, most_pages, counts, count * kv_heads, page_tokens, tables.lengths,
                   kv_heads, part.tokens, part.capacity, part.counts, handle);
    });
    return lists.selection(rows.size(), kv_heads, false);
  }

  void score_centroids(ConstMatrix q, std::int64_t row, std::int64_t heads, std::int64_t kv_heads,
                       const Centroids& centroids, float scale, float* scores,
                       Stream& stream) override {
    const std::int64_t count = centroids.count;
    const auto shape = [&] {
      return shape_of(q, row, heads, kv_heads) + ", " + shape_text({{"count", count}});
    };
    check_query(q, row, heads, kv_heads, "score_centroids", shape);
    require(count >= 0 && (count == 0 || (centroids.means != nullptr && centroids.keys != nullptr &&
                                          scores != nullptr)),
            "score_centroids", "no clusters, or no room for the scores", shape);
    if (count == 0) return;
    const std::int64_t head_dim = q.cols / heads;
    const auto entries = static_cast<std::size_t>(kv_heads * count);
    Call call;
    call.scratch = scratch_of(heads, kv_heads, head_dim, count);
    call.base = scratch_.at_least(static_cast<std::size_t>(call.scratch.bytes), stream);
    call.keys.max_length = count;
    tables_.assign(static_cast<std::size_t>(kv_heads), static_cast<std::int32_t>(count));
    arguments_.reserve(tables_.size() * sizeof(std::int32_t) + entries, 2, stream);
    ScoreClusters clusters;
    clusters.centroids = centroids.means;
    clusters.dtype = DType::kF32;
    clusters.keys = centroids.keys;
    clusters.clusters = arguments_.send(std::span<const std::int32_t>(tables_), stream);
    if (centroids.alive != nullptr) {
      clusters.alive = arguments_.send(std::span(centroids.alive, entries), stream);
    }
    clusters.max_clusters = count;
    clusters.sequences = 1;
    clusters.kv_heads = kv_heads;
    clusters.head_dim = head_dim;
    const ScoreLogits logits = logits_of(call);
    const StreamHandle handle = settings_.stream_handle(stream);
    cuda::score_centroids(clusters, query_of(q, row, heads), scale, logits, handle);
    auto* results = call.at<float>(call.scratch.scores_at);
    group_scores(logits, clusters.clusters, 1, kv_heads, heads / kv_heads, count,
                 GroupReduce::kProbabilityMean, results, call.at<float>(call.scratch.totals_at),
                 handle);
    const HostTransfer transfer{scores, results, entries * sizeof(float)};
    staging_.to_host({&transfer, 1}, stream);
  }

  void sum_values(ConstMatrix v, std::span<const ValueRows> parts, Stream& stream) override {
    std::vector<SummedRows> summed;
    for (const ValueRows& part : parts) {
      require(part.first_row >= 0 && part.rows >= 0 && part.first_row + part.rows <= v.rows &&
                  part.sums != nullptr,
              "sum_values", "rows of v and sums for them", [&] {
                return shape_text({{"v", v}}) + ", " +
                       shape_text({{"first_row", part.first_row}, {"rows", part.rows}});
              });
      if (part.rows > 0) summed.push_back({part.first_row, part.rows, part.sums});
    }
    if (summed.empty()) return;
    cuda::sum_values(v, arguments_.send(std::span<const SummedRows>(summed), stream),
                     static_cast<std::int64_t>(summed.size()), settings_.stream_handle(stream));
  }

  void reallocate(Matrix out, std::span<const ReallocatedRow> rows, std::int64_t heads,
                  std::int64_t kv_heads, const float* alpha, Stream& stream) override {
    std::vector<MeanRow> means;
    for (const ReallocatedRow& row : rows) {
      const auto shape = [&] {
        return shape_of(out, row.row, heads, kv_heads) + ", " +
               shape_text({{"tokens", row.tokens}});
      };
      check_query(out, row.row, heads, kv_heads, "reallocate", shape);
      require(alpha != nullptr, "reallocate", "no shares", shape);
      require(row.sums == nullptr || row.tokens > 0, "reallocate", "a mean of no tokens", shape);
      means.push_back(
          {row.row, row.sums, row.sums == nullptr ? 0.0F : 1.0F / static_cast<float>(row.tokens)});
    }
    if (means.empty()) return;
    cuda::reallocate(out, arguments_.send(std::span<const MeanRow>(means), stream),
                     static_cast<std::int64_t>(means.size()), heads, kv_heads, alpha,
                     settings_.stream_handle(stream));
  }

 private:
  // Some rows whose queries follow each other, with their tables on the device.
  struct Call {
    ScoreKeys keys;
    ScoreQueries queries;
    CudaSparseScratch scratch;
    std::byte* base = nullptr;
    // Of each row: tokens that are chosen, and the newest among them.
    const std::int32_t* ks = nullptr;
    const std::int32_t* locals = nullptr;
    std::int64_t most = 0;        // of the ks
    std::int64_t most_local = 0;  // of the locals

    template <class T>
    [[nodiscard]] T* at(std::int64_t offset) const {
      return reinterpret_cast<T*>(base + offset);
    }
  };

  // Of one row of a choice.
  struct Limits {
    std::int64_t tokens = 0;
    std::int64_t recent = 0;
  };

  // The Selection that is being made.
  struct Lists {
    std::int32_t* tokens = nullptr;
    std::int32_t* counts = nullptr;
    float* alpha = nullptr;
    std::int64_t capacity = 0;

    // From row `first` on.
    [[nodiscard]] Lists from(std::size_t first, std::int64_t heads, std::int64_t lists) const {
      const auto row = static_cast<std::int64_t>(first);
      return {tokens + row * lists * capacity, counts + row * lists, alpha + row * heads, capacity};
    }
    [[nodiscard]] Selection selection(std::size_t rows, std::int64_t lists, bool shares) const {
      return {static_cast<std::int64_t>(rows), lists, capacity, tokens, counts,
              shares ? alpha : nullptr};
    }
  };

  // Tables of some rows on the device.
  struct Tables {
    const std::int32_t* length = nullptr;
    const std::int32_t* partial_page = nullptr;
    const std::int32_t* pages = nullptr;
    const std::int32_t* scale_pages = nullptr;
    const std::int32_t* ks = nullptr;
    const std::int32_t* locals = nullptr;
    const void* keys = nullptr;  // that `pages` count from
    std::int64_t max_pages = 0;
    std::int64_t max_length = 0;
    std::int64_t sequences = 0;
    const std::int32_t* more = nullptr;
  };

  static CudaSparseScratch scratch_of(std::int64_t heads, std::int64_t kv_heads,
                                      std::int64_t head_dim, std::int64_t length,
                                      std::int64_t rows = 1) {
    return cuda_sparse_scratch({.heads = heads,
                                .kv_heads = kv_heads,
                                .head_dim = head_dim,
                                .max_query_rows = 1,
                                .max_context = length},
                               rows);
  }

  static ScoreQueries query_of(const ConstMatrix& q, std::int64_t row, std::int64_t heads) {
    return {static_cast<const float*>(q.data) + row * q.row_stride, q.row_stride, heads};
  }

  // `columns` floats of each of `rows` rows.
  static std::vector<HostTransfer> rows_of(float* to, std::int64_t to_stride, const float* from,
                                           std::int64_t from_stride, std::int64_t rows,
                                           std::int64_t columns) {
    std::vector<HostTransfer> transfers;
    for (std::int64_t row = 0; row < rows; ++row) {
      transfers.push_back({to + row * to_stride, from + row * from_stride,
                           static_cast<std::size_t>(columns) * sizeof(float)});
    }
    return transfers;
  }

  // Lengths, partial pages, limits, pages, scale pages, `more` numbers: one array on its way. With
  // `columns` the pages before a query's own are those of K^T.
  Tables send_tables(const KvLayerView& cache, std::span<const AttentionSegment> rows,
                     std::span<const Limits> limits, bool columns, Stream& stream,
                     std::span<const std::int32_t> more = {}) {
    Tables tables;
    tables.sequences = static_cast<std::int64_t>(rows.size());
    for (const AttentionSegment& row : rows) {
      tables.max_pages = std::max(tables.max_pages, blocks_of(cache, row));
      tables.max_length = std::max(tables.max_length, row.context_tokens);
    }
    // What make_tables() sent serves rows that follow each other there, but for K^T.
    const SegmentTables* sent_before = columns ? nullptr : rows.front().tables;
    for (std::size_t row = 1; row < rows.size() && sent_before != nullptr; ++row) {
      const bool follows =
          rows[row].tables == sent_before && rows[row].table_row == rows[row - 1].table_row + 1;
      if (!follows) sent_before = nullptr;
    }
    const std::size_t count = rows.size();
    const auto pages = sent_before != nullptr ? 0 : static_cast<std::size_t>(tables.max_pages);
    const std::size_t pages_at = 4 * count;
    const std::size_t scales_at = pages_at + count * pages;
    tables_.assign(scales_at + (cache.quantized() ? count * pages : 0), 0);
    for (std::size_t row = 0; row < count; ++row) {
      const AttentionSegment& keys = rows[row];
      tables_[row] = static_cast<std::int32_t>(keys.context_tokens);
      tables_[count + row] = keys.partial_page.value;
      if (!limits.empty()) {
        tables_[2 * count + row] = static_cast<std::int32_t>(limits[row].tokens);
        tables_[3 * count + row] = static_cast<std::int32_t>(limits[row].recent);
      }
      if (sent_before != nullptr) continue;
      const auto blocks = static_cast<std::size_t>(blocks_of(cache, keys));
      for (std::size_t i = 0; i < std::min(blocks, keys.pages.size()); ++i) {
        const bool transposed = columns && i + 1 < blocks;
        tables_[pages_at + row * pages + i] =
            (transposed ? column_page(cache, keys, i) : keys.pages[i]).value;
      }
      if (!cache.quantized()) continue;
      for (std::size_t i = 0; i < std::min(blocks, keys.scale_pages.size()); ++i) {
        tables_[scales_at + row * pages + i] = keys.scale_pages[i].value;
      }
    }
    tables_.insert(tables_.end(), more.begin(), more.end());
    const std::int32_t* sent = arguments_.send(std::span<const std::int32_t>(tables_), stream);
    tables.length = sent;
    tables.partial_page = sent + count;
    tables.ks = sent + 2 * count;
    tables.locals = sent + 3 * count;
    tables.keys = cache.k;
    tables.pages = sent + pages_at;
    tables.scale_pages = sent + scales_at;
    tables.more = sent + (tables_.size() - more.size());
    if (sent_before == nullptr) return tables;
    const AttentionSegment& first = rows.front();
    tables.max_pages = sent_before->max_pages;
    tables.keys = from_page(cache, first.table_layer).k;
    tables.pages = sent_before->pages + first.table_row * sent_before->max_pages;
    if (cache.quantized()) {
      tables.scale_pages = sent_before->scale_pages + first.table_row * sent_before->max_pages;
    }
    return tables;
  }

  struct QuestTables {
    const float* const* bounds = nullptr;
    const std::int32_t* lengths = nullptr;
    const std::int32_t* pages = nullptr;  // that a context has
    const std::int32_t* ks = nullptr;     // that are chosen
  };

  QuestTables send_quest_tables(std::span<const AttentionSegment> rows,
                                std::span<const PageChoice> choices, std::int64_t page_tokens,
                                Stream& stream) {
    const std::size_t count = rows.size();
    bounds_.clear();
    tables_.assign(3 * count, 0);
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t context = rows[i].context_tokens;
      bounds_.push_back(choices[i].bounds);
      tables_[i] = static_cast<std::int32_t>(context);
      tables_[count + i] = static_cast<std::int32_t>(pages_of(context, page_tokens));
      tables_[2 * count + i] = static_cast<std::int32_t>(choices[i].pages);
    }
    arguments_.reserve(count * (sizeof(float*) + 3 * sizeof(std::int32_t)), 2, stream);
    const float* const* bounds = arguments_.send(std::span<const float* const>(bounds_), stream);
    const std::int32_t* sent = arguments_.send(std::span<const std::int32_t>(tables_), stream);
    return {bounds, sent, sent + count, sent + 2 * count};
  }

  // A slice of a segment's queries, from `query` on.
  static PrefillColumns columns_of(const ConstMatrix& q, std::int64_t heads,
                                   const KvLayerView& cache, const AttentionSegment& segment,
                                   std::int64_t query, float scale, const Tables& tables) {
    PrefillColumns call;
    call.queries = std::min(kColumnSliceQueries, segment.query_count - query);
    call.q = static_cast<const float*>(q.data) + (segment.query_begin + query) * q.row_stride;
    call.q_stride = q.row_stride;
    call.first_position = segment.context_tokens - segment.query_count + query;
    call.row_begin = call.first_position;
    call.row_end = call.first_position + call.queries;
    call.window = segment.window;
    call.k = tables.keys;
    call.dtype = cache.dtype;
    call.scales = cache.scales;
    call.scale_pages = tables.scale_pages;
    call.partial_k = cache.partial_k;
    call.partial_dtype = cache.partial_dtype;
    call.partial_page = segment.partial_page.value;
    call.pages = tables.pages;
    call.page_tokens = cache.page_tokens;
    call.heads = heads;
    call.kv_heads = cache.kv_heads;
    call.head_dim = cache.head_dim;
    call.scale = scale;
    return call;
  }

  // Keys by rows.
  static ScoreKeys score_keys_of(const KvLayerView& cache, const Tables& tables) {
    return {.keys = tables.keys,
            .dtype = cache.dtype,
            .scales = cache.scales,
            .open_keys = cache.partial_k,
            .partial_pages = tables.partial_page,
            .partial_dtype = cache.partial_dtype,
            .pages = tables.pages,
            .scale_pages = tables.scale_pages,
            .max_pages = tables.max_pages,
            .lengths = tables.length,
            .sequences = tables.sequences,
            .max_length = tables.max_length,
            .page_tokens = cache.page_tokens,
            .kv_heads = cache.kv_heads,
            .head_dim = cache.head_dim};
  }

  // K^T of every full block before the query's own.
  static bool all_transposed(const KvLayerView& cache, const AttentionSegment& keys) {
    const auto full =
        std::min(static_cast<std::size_t>(blocks_of(cache, keys) - 1), keys.pages.size());
    for (std::size_t i = 0; i < full; ++i) {
      if (!written_column_page(cache, keys, i).valid()) return false;
    }
    return true;
  }

  static void check_row(const ConstMatrix& q, std::int64_t heads, const KvLayerView& cache,
                        const AttentionSegment& row, const char* operation) {
    check_keys(cache, row, operation);
    const auto shape = [&] {
      return shape_of(cache, row) + ", " + shape_of(q, row.query_begin, heads, cache.kv_heads);
    };
    check_query(q, row.query_begin, heads, cache.kv_heads, operation, shape);
    require(q.cols == heads * cache.head_dim, operation, "q's heads are not the cache's", shape);
  }

  static void check_choice(std::span<const ChannelChoice> choices, std::size_t index,
                           const KvLayerView& cache, const AttentionSegment& row) {
    const ChannelChoice choice = index < choices.size() ? choices[index] : ChannelChoice{};
    require(
        choice.rank > 0 && choice.rank <= cache.head_dim && choice.tokens > 0 &&
            choice.tokens <= row.context_tokens && choice.recent >= 0 &&
            choice.recent <= choice.tokens && choice.rank == choices.front().rank &&
            choice.sum_logits == choices.front().sum_logits &&
            choice.temperature == choices.front().temperature,
        "choose_by_channels", "a choice beyond the context or the channels", [&] {
          return shape_of(cache, row) + ", " +
                 shape_text(
                     {{"rank", choice.rank}, {"tokens", choice.tokens}, {"recent", choice.recent}});
        });
  }

  enum class Read : std::uint8_t { kRows, kColumns };

  // The rows have been checked, and their queries follow each other. `scored`: with scratch for
  // their scores.
  Call prepare(const ConstMatrix& q, std::int64_t heads, const KvLayerView& cache,
               std::span<const AttentionSegment> rows, std::span<const Limits> limits, Read read,
               bool scored, Stream& stream) {
    Call call;
    const Tables tables = send_tables(cache, rows, limits, read == Read::kColumns, stream);
    call.scratch = scratch_of(heads, cache.kv_heads, cache.head_dim, tables.max_length,
                              static_cast<std::int64_t>(rows.size()));
    call.base =
        scratch_.at_least(static_cast<std::size_t>(scored ? call.scratch.bytes : 0), stream);
    call.keys = score_keys_of(cache, tables);
    if (read == Read::kColumns) call.keys.channels = cache.kt;
    call.queries = query_of(q, rows.front().query_begin, heads);
    call.ks = tables.ks;
    call.locals = tables.locals;
    for (const Limits& limit : limits) {
      call.most = std::max(call.most, limit.tokens);
      call.most_local = std::max(call.most_local, limit.recent);
    }
    return call;
  }

  // Calls `body` for stretches of rows whose queries follow each other, whose keys are read alike,
  // and, where `scored`, whose scores fit the scratch.
  template <class Body>
  void for_parts(std::int64_t heads, const KvLayerView& cache,
                 std::span<const AttentionSegment> rows, bool scored, Stream& stream,
                 const Body& body) {
    std::int64_t longest = 0;
    for (const AttentionSegment& row : rows) longest = std::max(longest, row.context_tokens);
    const CudaSparseScratch one = scratch_of(heads, cache.kv_heads, cache.head_dim, longest);
    (void)scratch_.at_least(static_cast<std::size_t>(one.bytes), stream);
    const std::size_t most =
        scored ? scratch_.bytes() / static_cast<std::size_t>(one.bytes) : rows.size();
    for_runs(rows, most, body);
  }

  // For at most `most` rows at a time, whose queries follow each other and whose keys are read
  // alike.
  template <class Body>
  void for_runs(std::span<const AttentionSegment> rows, std::size_t most, const Body& body) {
    std::size_t first = 0;
    while (first < rows.size()) {
      std::size_t end = first + 1;
      while (end < rows.size() && end - first < most && columns_[end] == columns_[first] &&
             rows[end].query_begin == rows[end - 1].query_begin + 1) {
        ++end;
      }
      body(first, end - first);
      first = end;
    }
  }

  // Room for a list of every row and KV head.
  Lists make_lists(std::size_t rows, std::int64_t heads, std::int64_t kv_heads, Stream& stream) {
    Lists lists;
    for (const Limits& limit : limits_) lists.capacity = std::max(lists.capacity, limit.tokens);
    const CudaListLayout layout =
        cuda_list_layout(static_cast<std::int64_t>(rows), kv_heads, lists.capacity, heads);
    std::byte* base = lists_.at_least(static_cast<std::size_t>(layout.bytes), stream);
    lists.tokens = reinterpret_cast<std::int32_t*>(base + layout.tokens_at);
    lists.counts = reinterpret_cast<std::int32_t*>(base + layout.counts_at);
    lists.alpha = reinterpret_cast<float*>(base + layout.alpha_at);
    return lists;
  }

  [[nodiscard]] bool fits_one_block(const KvLayerView& cache, std::int64_t heads,
                                    std::span<const AttentionSegment> rows,
                                    const ChannelChoice& choice) const {
    const std::int64_t group = heads / cache.kv_heads;
    const std::int64_t page = cache.page_tokens;
    const std::int64_t most = sparq_select_tokens(group, settings_.machine.shared_bytes_per_block);
    return !choice.sum_logits && cache.dtype != DType::kF32 &&
           (page == 32 || page == 64 || page == 128) && group <= 8 &&
           std::ranges::all_of(
               rows, [most](const AttentionSegment& row) { return row.context_tokens <= most; });
  }

  static void choose_fused(const Call& call, const SparqScale& scale, const ChannelChoice& choice,
                           const Lists& lists, StreamHandle handle) {
    SparqSelect select;
    select.keys = call.keys;
    select.queries = call.queries;
    select.rank = choice.rank;
    select.scale = scale;
    select.k = call.most;
    select.local = call.most_local;
    select.ks = call.ks;
    select.locals = call.locals;
    select.indices = lists.tokens;
    select.capacity = lists.capacity;
    select.counts = lists.counts;
    select.alpha = lists.alpha;
    sparq_select(select, handle);
  }

  // From logits to lists and shares.
  static void rank_and_select(const Call& call, GroupReduce reduce, const Lists& lists,
                              StreamHandle handle) {
    const ScoreKeys& keys = call.keys;
    const std::int64_t rows = keys.sequences * keys.kv_heads;
    const std::int64_t group = call.queries.heads / keys.kv_heads;
    auto* scores = call.at<float>(call.scratch.scores_at);
    auto* totals = call.at<float>(call.scratch.totals_at);
    const ScoreLogits logits = logits_of(call);
    group_scores(logits, keys.lengths, keys.kv_heads, rows, group, keys.max_length, reduce, scores,
                 totals, handle);
    select_top({.scores = scores,
                .score_stride = keys.max_length,
                .lengths = keys.lengths,
                .rows = rows,
                .rows_per_sequence = keys.kv_heads,
                .max_length = keys.max_length,
                .local = call.most_local,
                .locals = call.locals,
                .ks = call.ks,
                .indices = lists.tokens,
                .capacity = lists.capacity,
                .counts = lists.counts},
               call.most, handle);
    selected_share(logits, totals, lists.tokens, lists.capacity, lists.counts, rows, group,
                   lists.alpha, handle);
  }

  static ScoreLogits logits_of(const Call& call) {
    return {.logits = call.at<float>(call.scratch.logits_at),
            .partials = call.at<float>(call.scratch.partials_at),
            .length_stride = call.keys.max_length};
  }

  Device* device_;
  CudaSparseSettings settings_;
  ArgumentRing arguments_;
  HostStaging staging_;
  DeviceScratch scratch_;
  DeviceScratch lists_;  // the last Selection
  // Of a call; kept to reuse their memory.
  std::vector<std::int32_t> tables_;
  std::vector<const float*> bounds_;
  std::vector<Limits> limits_;
  std::vector<bool> columns_;  // of each row, whether K^T is read
};

}  // namespace

std::unique_ptr<CudaSparseOps> make_cuda_sparse_ops(Device& device, Device& host,
                                                    CudaSparseSettings settings) {
  return std::make_unique<CudaSparseOpsOnStreams>(device, host, std::move(settings));
}

}  // namespace triphase::cuda
