#include "kernels/cuda/cuda_sparse_ops.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/cuda/cache_view.h"
#include "kernels/cuda/cluster_choice.h"
#include "kernels/cuda/host_staging.h"
#include "kernels/cuda/kept_choice.h"
#include "kernels/cuda/kv_channels.h"
#include "kernels/cuda/page_choice.h"
#include "kernels/cuda/select_rows.h"
#include "kernels/cuda/sparq_select.h"
#include "kernels/cuda/sparse_calls.h"
#include "kernels/cuda/token_ranges.h"
#include "kernels/cuda/value_mean.h"
#include "kernels/cuda/window_choice.h"

namespace triphase::cuda {
namespace {

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

// `columns` floats of each of `rows` rows.
std::vector<HostTransfer> rows_of(float* to, std::int64_t to_stride, const float* from,
                                  std::int64_t from_stride, std::int64_t rows,
                                  std::int64_t columns) {
  std::vector<HostTransfer> transfers;
  for (std::int64_t row = 0; row < rows; ++row) {
    transfers.push_back({to + row * to_stride, from + row * from_stride,
                         static_cast<std::size_t>(columns) * sizeof(float)});
  }
  return transfers;
}

// K^T of every full block before the query's own. Where a step is announced, what
// transpose_keys() will have written counts.
bool all_transposed(const KvLayerView& cache, const AttentionSegment& keys, bool announced) {
  const auto full =
      std::min(static_cast<std::size_t>(blocks_of(cache, keys) - 1), keys.pages.size());
  for (auto i = static_cast<std::size_t>(keys.transposed_blocks); i < full; ++i) {
    const PageId page =
        announced ? column_page(cache, keys, i) : written_column_page(cache, keys, i);
    if (!page.valid()) return false;
  }
  return true;
}

void check_row(const ConstMatrix& q, std::int64_t heads, const KvLayerView& cache,
               const AttentionSegment& row, const char* operation) {
  check_keys(cache, row, operation);
  const auto shape = [&] {
    return shape_of(cache, row) + ", " + shape_of(q, row.query_begin, heads, cache.kv_heads);
  };
  check_query(q, row.query_begin, heads, cache.kv_heads, operation, shape);
  require(q.cols == heads * cache.head_dim, operation, "q's heads are not the cache's", shape);
}

void check_choice(std::span<const ChannelChoice> choices, std::size_t index,
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

class CudaSparseOpsOnStreams final : public CudaSparseOps {
 public:
  CudaSparseOpsOnStreams(Device& device, Device& host, std::shared_ptr<ArgumentRing> arguments,
                         const GpuMachine& machine)
      : device_(&device),
        machine_(machine),
        memory_(device, std::move(arguments)),
        staging_(device, host) {}

  [[nodiscard]] Device& memory() override { return *device_; }

  void reserve(const OpsShape& shape, Stream& stream) override {
    const CudaScratchBytes bytes = cuda_scratch_bytes(machine_, shape);
    (void)memory_.scratch.at_least(static_cast<std::size_t>(bytes.selection), stream);
    (void)memory_.lists.at_least(static_cast<std::size_t>(bytes.lists), stream);
  }

  void score_keys(ConstMatrix q, std::int64_t row, std::int64_t heads, const KvLayerView& cache,
                  const AttentionSegment& keys, ScoreScale scale, float* probabilities,
                  std::int64_t stride, Workspace, Stream& stream) override {
    AttentionSegment segment = keys;
    segment.query_begin = row;
    check_row(q, heads, cache, segment, "score_keys");
    require(probabilities != nullptr && stride >= keys.context_tokens, "score_keys",
            "no room for the probabilities", [&] { return shape_of(cache, keys); });
    const Call call = prepare(q, heads, cache, {&segment, 1}, {}, Read::kRows, true, stream);
    ScoreLogits logits = logits_of(call);
    logits.sinks = scale.sinks;
    const StreamHandle handle = stream.launches();
    score_exact(call.keys, call.queries, scale.factor, logits, handle);
    auto* scores = call.at<float>(call.scratch.scores_at);
    group_scores(logits, call.keys.lengths, cache.kv_heads, cache.kv_heads, heads / cache.kv_heads,
                 keys.context_tokens, GroupReduce::kNone, scores,
                 call.at<float>(call.scratch.totals_at), handle);
    staging_.to_host(
        rows_of(probabilities, stride, scores, keys.context_tokens, heads, keys.context_tokens),
        stream);
  }

  // Eight warps of a block read 32 tokens each of neighbouring tiles.
  [[nodiscard]] std::int64_t transposed_k_run_bytes() const override { return 512; }

  void transpose_keys(const KvLayerView& cache, std::span<const AttentionSegment> rows,
                      Stream& stream) override {
    for (const AttentionSegment& row : rows) check_keys(cache, row, "transpose_keys");
    if (cache.kt == nullptr || rows.empty()) return;
    const SparseCall call = call_on(stream);
    // Pages are counted from the layer's first, as K^T's are, so that all layers have the same
    // lists.
    const bool have_tables = std::ranges::all_of(
        rows, [](const SegmentTables* tables) { return tables != nullptr; },
        &AttentionSegment::tables);
    const std::int64_t layer = have_tables ? rows.front().table_layer : 0;
    const auto in_first_layer = [layer](PageId page) {
      return page.value - static_cast<std::int32_t>(layer);
    };
    std::vector<std::int32_t> from;
    std::vector<std::int32_t> to;
    for (const AttentionSegment& keys : rows) {
      // INT8: the query's own block is read unquantized, and its page may not be written yet.
      const std::int64_t full =
          cache.quantized() ? blocks_of(cache, keys) - 1 : keys.context_tokens / cache.page_tokens;
      for (auto i = static_cast<std::size_t>(keys.transposed_blocks);
           i < static_cast<std::size_t>(full); ++i) {
        const PageId page = column_page(cache, keys, i);
        if (!page.valid() || written_column_page(cache, keys, i).valid()) continue;
        from.push_back(in_first_layer(keys.pages[i]));
        to.push_back(page.value);
        // Whatever reads them comes later on the same stream.
        if (!call.announces()) cache.kt_ready[page.index()] = 1;
      }
    }
    if (from.empty()) return;
    const auto count = static_cast<int>(from.size());
    from.insert(from.end(), to.begin(), to.end());
    const std::int32_t* sent = call.send(std::span<const std::int32_t>(from));
    if (call.announces()) return;
    KvCache view;
    view.k = from_page(cache, layer).k;
    view.dtype = cache.dtype;
    view.page_tokens = static_cast<int>(cache.page_tokens);
    view.kv_heads = static_cast<int>(cache.kv_heads);
    view.head_dim = static_cast<int>(cache.head_dim);
    kv_write_channels(sent, sent + count, count, view, channels_of(cache), call.handle);
  }

  [[nodiscard]] Selection choose_by_channels(ConstMatrix q, std::int64_t heads,
                                             const KvLayerView& cache,
                                             std::span<const AttentionSegment> rows, float scale,
                                             std::span<const ChannelChoice> choices,
                                             std::span<const ValueMean> means, Workspace,
                                             Stream& stream) override {
    require(means.empty() || means.size() == rows.size(), "choose_by_channels",
            "a mean for each row or none", [&] { return shape_of(cache); });
    limits_.clear();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      check_row(q, heads, cache, rows[i], "choose_by_channels");
      check_choice(choices, i, cache, rows[i]);
      require(means.empty() || (means[i].sums != nullptr && means[i].tokens > 0),
              "choose_by_channels", "a mean of no tokens",
              [&] { return shape_of(cache, rows[i]); });
      limits_.push_back({choices[i].tokens, choices[i].recent});
    }
    if (rows.empty()) return {};
    const ChannelChoice& choice = choices.front();
    const SparqScale sparq{scale, sharpness_of(choice, cache.head_dim)};
    const StreamHandle handle = stream.launches();
    const MadeLists lists = make_lists(call_on(stream), limits_, cache.kv_heads, heads);
    // Row by row: how one is scored does not depend on the others.
    ways_.clear();
    for (const AttentionSegment& row : rows) {
      ways_.push_back({all_transposed(cache, row, memory_.arguments->announcing()),
                       fits_one_block(cache, heads, row, choice)});
    }
    const bool scored = !std::ranges::all_of(ways_, &Way::fused);
    for_parts(heads, cache, rows, scored, stream, [&](std::size_t first, std::size_t count) {
      const bool fused = ways_[first].fused;
      const Call call = prepare(
          q, heads, cache, rows.subspan(first, count), std::span(limits_).subspan(first, count),
          ways_[first].columns ? Read::kColumns : Read::kRows, !fused, stream);
      if (memory_.arguments->announcing()) return;
      const MadeLists part = lists.from(first, heads, cache.kv_heads);
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
    Selection made = lists.selection(rows.size(), cache.kv_heads, !means.empty());
    if (!means.empty()) made.means = memory_.arguments->keep(means, stream);
    return made;
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
    const StreamHandle handle = stream.launches();
    const MadeLists lists = make_lists(call_on(stream), limits_, cache.kv_heads, heads);
    ways_.assign(rows.size(), {});
    for_parts(heads, cache, rows, true, stream, [&](std::size_t first, std::size_t count) {
      const Call call =
          prepare(q, heads, cache, rows.subspan(first, count),
                  std::span(limits_).subspan(first, count), Read::kRows, true, stream);
      if (memory_.arguments->announcing()) return;
      score_exact(call.keys, call.queries, scale, logits_of(call), handle);
      rank_and_select(call, GroupReduce::kProbabilitySum, lists.from(first, heads, cache.kv_heads),
                      handle);
    });
    return lists.selection(rows.size(), cache.kv_heads, true);
  }

  void accumulate_columns(ConstMatrix q, std::int64_t heads, const KvLayerView& cache,
                          std::span<const PromptColumns> chunks, ScoreScale scale, Workspace,
                          Stream& stream) override {
    std::vector<AttentionSegment> segments;
    for (const PromptColumns& chunk : chunks) {
      const AttentionSegment& segment = chunk.segment;
      check_keys(cache, segment, "accumulate_columns");
      check_segment(q, heads, cache, segment, "accumulate_columns");
      require(chunk.sums != nullptr && chunk.stride >= segment.context_tokens, "accumulate_columns",
              "no room for the sums", [&] {
                return shape_of(cache, segment) + ", " + shape_text({{"stride", chunk.stride}});
              });
      segments.push_back(segment);
    }
    if (segments.empty()) return;
    const SparseCall call = call_on(stream);
    const KeyTables tables = send_tables(call, cache, segments, {}, false);
    const PrefillColumns columns = columns_of(q, heads, cache, scale, tables);
    std::vector<ColumnPart> parts;
    std::vector<ColumnPrompt> prompts;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      if (prompts.empty() || prompts.back().sums != chunks[i].sums) {
        prompts.push_back({.first_part = std::ssize(parts),
                           .parts = 0,
                           .sums = chunks[i].sums,
                           .sum_stride = chunks[i].stride});
      }
      ++prompts.back().parts;
      parts.push_back(part_of(columns, segments[i], i, tables));
    }
    lay_out_tiles(columns, parts, prompts);
    prefill_colsum(columns,
                   {.parts = parts,
                    .prompts = prompts,
                    .sent_parts = call.send(std::span<const ColumnPart>(parts)),
                    .sent_prompts = call.send(std::span<const ColumnPrompt>(prompts))},
                   call.handle);
  }

  void clear_weights(std::span<const WeightWindow> windows, Stream& stream) override {
    clear_windows(call_on(stream), windows);
  }

  void add_weights(const Selection& attended, std::int64_t heads, std::span<const WeightRow> rows,
                   std::int64_t layer, bool beside, Stream& stream) override {
    add_to_windows(call_on(stream), attended, heads, rows, layer, beside);
  }

  void add_prompt_rows(ConstMatrix q, std::int64_t heads, const KvLayerView& cache,
                       std::span<const PromptWindowRows> chunks, ScoreScale scale, Workspace,
                       Stream& stream) override {
    add_prompts_to_windows(call_on(stream), q, heads, cache, chunks, scale);
  }

  [[nodiscard]] Selection choose_recent_and_heaviest(std::span<const WindowChoice> rows,
                                                     std::int64_t layers, Stream& stream) override {
    return choose_from_windows(call_on(stream), rows, layers);
  }

  [[nodiscard]] Selection choose_ranges(std::span<const TokenRanges> rows,
                                        Stream& stream) override {
    if (rows.empty()) return {};
    const SparseCall call = call_on(stream);
    std::vector<RowLimits> limits;
    for (const TokenRanges& row : rows) limits.push_back({row.tokens(), 0});
    const MadeLists lists = make_lists(call, limits, 1, 0);
    const TokenRanges* sent = call.send(rows);
    if (!call.announces()) {
      write_ranges(sent, std::ssize(rows), lists.tokens, lists.capacity, lists.counts, call.handle);
    }
    return lists.selection(rows.size(), 1, false);
  }

  void keep_all(std::span<const KeptTokens> kept, std::int64_t tokens, Stream& stream) override {
    keep_every_token(call_on(stream), kept, tokens);
  }

  [[nodiscard]] Selection keep_heaviest(std::span<const KeptRow> rows, std::int64_t layers,
                                        Stream& stream) override {
    return choose_from_kept(call_on(stream), rows, layers);
  }

  void add_kept_weights(const Selection& attended, std::int64_t heads,
                        std::span<const KeptWeights> rows, std::int64_t layer, bool beside,
                        Stream& stream) override {
    add_to_kept(call_on(stream), attended, heads, rows, layer, beside);
  }

  void bound_pages(const KvLayerView& cache, std::span<const AttentionSegment> rows,
                   std::span<const PageBounds> bounds, std::int64_t page_tokens, std::int64_t layer,
                   Stream& stream) override {
    cuda::bound_pages(call_on(stream), cache, rows, bounds, page_tokens, layer);
  }

  [[nodiscard]] Selection choose_by_pages(ConstMatrix q, std::int64_t heads, std::int64_t kv_heads,
                                          std::span<const AttentionSegment> rows,
                                          std::span<const PageChoice> choices,
                                          std::int64_t page_tokens, std::int64_t layer,
                                          Stream& stream) override {
    return choose_pages(call_on(stream), q, heads, kv_heads, rows, choices, page_tokens, layer);
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
    call.base = memory_.scratch.at_least(static_cast<std::size_t>(call.scratch.bytes), stream);
    call.keys.max_length = count;
    memory_.words.assign(1, static_cast<std::int32_t>(count));
    memory_.arguments->reserve(sizeof(std::int32_t) + entries, 2, stream);
    const std::int32_t* length =
        memory_.arguments->send(std::span<const std::int32_t>(memory_.words), stream);
    ScoreClusters clusters;
    clusters.centroids = centroids.means;
    clusters.keys = centroids.keys;
    if (centroids.alive != nullptr) {
      clusters.alive = memory_.arguments->send(std::span(centroids.alive, entries), stream);
    }
    clusters.count = count;
    clusters.sequences = 1;
    clusters.kv_heads = kv_heads;
    clusters.head_dim = head_dim;
    const ScoreLogits logits = logits_of(call);
    const StreamHandle handle = stream.launches();
    cuda::score_centroids(clusters, query_of(q, row, heads), scale, logits, handle);
    auto* results = call.at<float>(call.scratch.scores_at);
    group_scores(logits, length, kv_heads, kv_heads, heads / kv_heads, count,
                 GroupReduce::kProbabilityMean, results, call.at<float>(call.scratch.totals_at),
                 handle);
    const HostTransfer transfer{scores, results, entries * sizeof(float)};
    staging_.to_host({&transfer, 1}, stream);
  }

  [[nodiscard]] Selection choose_by_clusters(ConstMatrix q, std::int64_t heads,
                                             std::int64_t kv_heads,
                                             std::span<const AttentionSegment> rows,
                                             std::size_t decoded, const KeyClusters& clusters,
                                             float scale, ClusterCounts* counts,
                                             Stream& stream) override {
    return cuda::choose_by_clusters(call_on(stream), q, heads, kv_heads, rows, decoded, clusters,
                                    scale, counts);
  }

  void sum_values(ConstMatrix v, std::span<const ValueRows> parts, std::int64_t layer, bool beside,
                  Stream& stream) override {
    std::vector<ValueRows> summed;
    for (const ValueRows& part : parts) {
      require(part.first_row >= 0 && part.rows >= 0 && part.first_row + part.rows <= v.rows &&
                  part.sums != nullptr,
              "sum_values", "rows of v and sums for them", [&] {
                return shape_text({{"v", v}}) + ", " +
                       shape_text({{"first_row", part.first_row}, {"rows", part.rows}});
              });
      if (part.rows > 0) summed.push_back(part);
    }
    if (summed.empty()) return;
    const ValueRows* sent = memory_.arguments->send(std::span<const ValueRows>(summed), stream);
    if (memory_.arguments->announcing()) return;
    cuda::sum_values(v, sent, std::ssize(summed), layer, beside, stream.launches());
  }

 private:
  [[nodiscard]] SparseCall call_on(Stream& stream) { return {memory_, stream, stream.launches()}; }

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

  enum class Read : std::uint8_t { kRows, kColumns };

  // How a row's tokens are scored.
  struct Way {
    bool columns = false;  // by K^T
    bool fused = false;    // chosen in one block of one kernel
    bool operator==(const Way&) const = default;
  };

  // The rows have been checked, and their queries follow each other. `scored`: with scratch for
  // their scores.
  Call prepare(const ConstMatrix& q, std::int64_t heads, const KvLayerView& cache,
               std::span<const AttentionSegment> rows, std::span<const RowLimits> limits, Read read,
               bool scored, Stream& stream) {
    Call call;
    const KeyTables tables =
        send_tables(call_on(stream), cache, rows, limits, read == Read::kColumns);
    call.scratch =
        scratch_of(heads, cache.kv_heads, cache.head_dim, tables.max_length, std::ssize(rows));
    call.base =
        memory_.scratch.at_least(static_cast<std::size_t>(scored ? call.scratch.bytes : 0), stream);
    call.keys = score_keys_of(cache, tables);
    call.keys.channels = tables.channels;
    call.queries = query_of(q, rows.front().query_begin, heads);
    call.ks = tables.ks;
    call.locals = tables.locals;
    for (const RowLimits& limit : limits) {
      call.most = std::max(call.most, limit.tokens);
      call.most_local = std::max(call.most_local, limit.recent);
    }
    return call;
  }

  // Calls `body` for stretches of rows whose queries follow each other, which go the same way, and,
  // where `scored`, whose scores fit the scratch.
  template <class Body>
  void for_parts(std::int64_t heads, const KvLayerView& cache,
                 std::span<const AttentionSegment> rows, bool scored, Stream& stream,
                 const Body& body) {
    std::int64_t longest = 0;
    for (const AttentionSegment& row : rows) longest = std::max(longest, row.context_tokens);
    const CudaSparseScratch one = scratch_of(heads, cache.kv_heads, cache.head_dim, longest);
    (void)memory_.scratch.at_least(static_cast<std::size_t>(one.bytes), stream);
    const std::size_t most =
        scored ? memory_.scratch.bytes() / static_cast<std::size_t>(one.bytes) : rows.size();
    for_runs(
        rows, most, [&](std::size_t row, std::size_t next) { return ways_[row] == ways_[next]; },
        body);
  }

  [[nodiscard]] bool fits_one_block(const KvLayerView& cache, std::int64_t heads,
                                    const AttentionSegment& row,
                                    const ChannelChoice& choice) const {
    const std::int64_t group = heads / cache.kv_heads;
    const std::int64_t page = cache.page_tokens;
    const std::int64_t most = sparq_select_tokens(group, machine_.shared_bytes_per_block);
    return !choice.sum_logits && cache.dtype != DType::kF32 &&
           (page == 32 || page == 64 || page == 128) && group <= 8 && row.context_tokens <= most;
  }

  // A row's shared memory for a length that stays the same while contexts grow.
  [[nodiscard]] std::int64_t fused_length(const Call& call) const {
    constexpr std::int64_t kUnit = 256;
    const ScoreKeys& keys = call.keys;
    const std::int64_t whole = round_up(keys.max_length, kUnit);
    const std::int64_t group = call.queries.heads / keys.kv_heads;
    const std::int64_t most = sparq_select_tokens(group, machine_.shared_bytes_per_block);
    return std::max(keys.max_length, std::min({whole, most, keys.max_pages * keys.page_tokens}));
  }

  void choose_fused(const Call& call, const SparqScale& scale, const ChannelChoice& choice,
                    const MadeLists& lists, StreamHandle handle) const {
    SparqSelect select;
    select.keys = call.keys;
    select.keys.max_length = fused_length(call);
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

  // Turns logits into lists and their shares of the weight.
  static void rank_and_select(const Call& call, GroupReduce reduce, const MadeLists& lists,
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
  GpuMachine machine_;
  SparseMemory memory_;
  HostStaging staging_;
  // Scratch of one call, kept to reuse its memory.
  std::vector<RowLimits> limits_;
  std::vector<Way> ways_;  // of each row
};

}  // namespace

std::unique_ptr<CudaSparseOps> make_cuda_sparse_ops(Device& device, Device& host,
                                                    std::shared_ptr<ArgumentRing> arguments,
                                                    const GpuMachine& machine) {
  return std::make_unique<CudaSparseOpsOnStreams>(device, host, std::move(arguments), machine);
}

}  // namespace triphase::cuda
