#include "kernels/cpu/cpu_sparse_ops.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/rounding.h"
#include "kernels/cpu/cpu_sparse_kernels.h"
#include "kernels/sizing/sparse_workspace.h"

namespace triphase {
namespace {

void check_keys(const KvLayerView& cache, const AttentionSegment& keys) {
  TRIPHASE_CHECK(
      cache.k != nullptr && cache.page_tokens > 0 && cache.kv_heads > 0 && cache.head_dim > 0 &&
          (!cache.quantized() ||
           (cache.scales != nullptr && cache.partial_k != nullptr && cache.page_tokens % 16 == 0)),
      "sparse: cache");
  const std::int64_t blocks = ceil_div(keys.context_tokens, cache.page_tokens);
  const auto pages = std::ssize(keys.pages);
  TRIPHASE_CHECK(keys.context_tokens > 0 && keys.query_count >= 0, "sparse: context");
  if (!cache.quantized()) {
    TRIPHASE_CHECK(pages >= blocks, "sparse: a segment's pages");
    return;
  }
  TRIPHASE_CHECK(pages >= blocks - 1 && std::ssize(keys.scale_pages) >= blocks - 1 &&
                     keys.partial_page.valid(),
                 "sparse: a segment's pages");
}

void check_query(const ConstMatrix& q, std::int64_t row, std::int64_t heads,
                 std::int64_t kv_heads) {
  TRIPHASE_CHECK(q.data != nullptr && q.dtype == DType::kF32 && row >= 0 && row < q.rows &&
                     kv_heads > 0 && heads > 0 && heads % kv_heads == 0 && q.cols % heads == 0,
                 "sparse: query");
}

void check_window(const WeightWindow& window) {
  TRIPHASE_CHECK(is_window(window), "sparse: a window of weights");
}

void check_step(const WeightWindow& window, const WindowStep& step, std::int64_t context) {
  check_window(window);
  TRIPHASE_CHECK(is_step_of(window, step, context), "sparse: a step of a window of weights");
}

// Whether attention has filled its scores, of so many query heads.
bool has_scores(const Selection& attended, std::int64_t heads) {
  return attended.scores.values != nullptr && attended.scores.softmax != nullptr &&
         attended.lists > 0 && heads > 0 && heads % attended.lists == 0;
}

// Tokens of a list whose weights one thread sums before they go elsewhere.
constexpr std::int64_t kWeightsAtOnce = 256;

class CpuSparseOps final : public SparseOps {
 public:
  CpuSparseOps(ThreadPool& pool, Device& memory) : pool_(&pool), memory_(&memory) {}

  [[nodiscard]] Device& memory() override { return *memory_; }
  // Lines of 64 bytes here and there arrive at less than half of the rate of half a KiB.
  [[nodiscard]] std::int64_t transposed_k_run_bytes() const override { return 4096; }

  void score_keys(ConstMatrix q, std::int64_t row, std::int64_t heads, const KvLayerView& cache,
                  const AttentionSegment& keys, ScoreScale scale, float* probabilities,
                  std::int64_t stride, Workspace workspace, Stream&) override {
    check_keys(cache, keys);
    check_query(q, row, heads, cache.kv_heads);
    TRIPHASE_CHECK(q.cols == heads * cache.head_dim && probabilities != nullptr &&
                       stride >= keys.context_tokens,
                   "score_keys: shapes");
    AttentionSegment of_row = keys;
    of_row.query_begin = row;
    cpu::score_keys(*pool_, {q, heads, cache, of_row, scale, probabilities, stride},
                    shape_of(heads, cache, keys, workspace), workspace);
  }

  void transpose_keys(const KvLayerView& cache, std::span<const AttentionSegment> rows,
                      Stream&) override {
    for (const AttentionSegment& row : rows) check_keys(cache, row);
    if (cache.kt == nullptr) return;
    TRIPHASE_CHECK(cache.kt_ready != nullptr && cache.kt_pages >= 0 && cache.kt_run > 0,
                   "transpose_keys: cache");
    for (const AttentionSegment& row : rows) cpu::transpose_keys(*pool_, cache, row);
  }

  [[nodiscard]] Selection choose_by_channels(ConstMatrix q, std::int64_t heads,
                                             const KvLayerView& cache,
                                             std::span<const AttentionSegment> rows, float scale,
                                             std::span<const ChannelChoice> choices,
                                             std::span<const ValueMean> means, Workspace workspace,
                                             Stream&) override {
    const bool shares = !means.empty();
    TRIPHASE_CHECK(rows.size() == choices.size() && (!shares || means.size() == rows.size()) &&
                       (cache.kt == nullptr || (cache.kt_ready != nullptr && cache.kt_run > 0)),
                   "choose_by_channels: shapes");
    std::int64_t capacity = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const ChannelChoice& choice = choices[i];
      check_row(q, heads, cache, rows[i]);
      TRIPHASE_CHECK(choice.rank > 0 && choice.rank <= cache.head_dim && choice.recent >= 0 &&
                         choice.recent <= choice.tokens && choice.tokens <= rows[i].context_tokens,
                     "choose_by_channels: shapes");
      TRIPHASE_CHECK(!shares || (means[i].sums != nullptr && means[i].tokens > 0),
                     "choose_by_channels: means");
      capacity = std::max(capacity, choice.tokens);
    }
    const auto count = std::ssize(rows);
    make_lists(count, cache.kv_heads, capacity, shares ? heads : 0);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto index = static_cast<std::size_t>(i);
      cpu::choose_by_channels(*pool_,
                              {.q = q,
                               .heads = heads,
                               .cache = cache,
                               .keys = rows[index],
                               .scale = scale,
                               .choice = choices[index],
                               .tokens = tokens_.data() + i * cache.kv_heads * capacity,
                               .capacity = capacity,
                               .alpha = shares ? alpha_.data() + i * heads : nullptr},
                              shape_of(heads, cache, rows[index], workspace), workspace);
      std::fill_n(counts_.begin() + i * cache.kv_heads, cache.kv_heads,
                  static_cast<std::int32_t>(choices[index].tokens));
    }
    Selection made = lists(count, cache.kv_heads, capacity, shares);
    means_.assign(means.begin(), means.end());
    if (shares) made.means = means_.data();
    return made;
  }

  [[nodiscard]] Selection choose_by_keys(ConstMatrix q, std::int64_t heads,
                                         const KvLayerView& cache,
                                         std::span<const AttentionSegment> rows, float scale,
                                         std::span<const std::int64_t> budgets, Workspace workspace,
                                         Stream&) override {
    TRIPHASE_CHECK(rows.size() == budgets.size(), "choose_by_keys: shapes");
    std::int64_t capacity = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      check_row(q, heads, cache, rows[i]);
      TRIPHASE_CHECK(budgets[i] > 0 && budgets[i] <= rows[i].context_tokens,
                     "choose_by_keys: shapes");
      capacity = std::max(capacity, budgets[i]);
    }
    const auto count = std::ssize(rows);
    make_lists(count, cache.kv_heads, capacity, heads);
    for (std::int64_t i = 0; i < count; ++i) {
      const AttentionSegment& row = rows[static_cast<std::size_t>(i)];
      const std::int64_t context = row.context_tokens;
      weights_.resize(static_cast<std::size_t>(heads * context));
      cpu::score_keys(*pool_, {q, heads, cache, row, scale, weights_.data(), context},
                      shape_of(heads, cache, row, workspace), workspace);
      for (std::int64_t list = 0; list < cache.kv_heads; ++list) {
        choose_by_weights(i * cache.kv_heads + list, list, context, heads / cache.kv_heads,
                          budgets[static_cast<std::size_t>(i)], capacity,
                          alpha_.data() + i * heads);
      }
    }
    return lists(count, cache.kv_heads, capacity, true);
  }

  void accumulate_columns(ConstMatrix q, std::int64_t heads, const KvLayerView& cache,
                          std::span<const PromptColumns> chunks, ScoreScale scale,
                          Workspace workspace, Stream&) override {
    for (const PromptColumns& chunk : chunks) {
      add_columns(q, heads, cache, chunk, scale, workspace);
    }
  }

  void clear_weights(std::span<const WeightWindow> windows, Stream&) override {
    for (const WeightWindow& window : windows) {
      check_window(window);
      std::fill_n(window.sums, window.tokens, 0);
      if (!window.exact()) std::fill_n(window.buckets, window.room * window.tokens, 0);
    }
  }

  void add_weights(const Selection& attended, std::int64_t heads, std::span<const WeightRow> rows,
                   std::int64_t layer, bool, Stream&) override {
    TRIPHASE_CHECK(rows.empty() || (attended.lists == 1 && has_scores(attended, heads)),
                   "add_weights: the selection");
    std::int64_t longest = 0;
    for (const WeightRow& row : rows) {
      longest = std::max(longest, row.step.count);
      check_step(row.window, row.step, row.context);
      TRIPHASE_CHECK(row.attended >= 0 && row.attended < attended.rows &&
                         row.step.count <= attended.capacity &&
                         attended.counts[row.attended] == row.step.count,
                     "add_weights: a row of the selection");
    }
    // A list's tokens differ, so that their parts may enter at once.
    const std::int64_t parts = ceil_div(longest, kWeightsAtOnce);
    pool_->parallel_for(parts * std::ssize(rows), [&](std::int64_t task, int) {
      const WeightRow& row = rows[static_cast<std::size_t>(task / parts)];
      const std::int64_t first = task % parts * kWeightsAtOnce;
      const std::int64_t end = std::min(first + kWeightsAtOnce, row.step.count);
      if (first >= end) return;
      std::array<float, kWeightsAtOnce> weights;
      cpu::sum_token_weights(attended, heads, row.attended, first, end, weights.data());
      cpu::enter_weights(in_layer(row.window, layer), row.step, first,
                         std::span(weights).first(static_cast<std::size_t>(end - first)),
                         attended.tokens + row.attended * attended.capacity);
    });
    pool_->parallel_for(std::ssize(rows), [&](std::int64_t i, int) {
      const WeightRow& row = rows[static_cast<std::size_t>(i)];
      cpu::expire_weights(in_layer(row.window, layer), row.step, row.context);
    });
  }

  void add_prompt_rows(ConstMatrix q, std::int64_t heads, const KvLayerView& cache,
                       std::span<const PromptWindowRows> chunks, ScoreScale scale,
                       Workspace workspace, Stream&) override {
    for (const PromptWindowRows& chunk : chunks) {
      const auto rows = std::ssize(chunk.steps);
      TRIPHASE_CHECK(rows == chunk.segment.query_count, "add_prompt_rows: a step for each query");
      for (std::int64_t i = 0; i < rows; ++i) {
        AttentionSegment row = chunk.segment;
        row.query_begin += i;
        row.query_count = 1;
        row.context_tokens -= rows - 1 - i;
        add_prompt_row(q, heads, cache, row, scale, chunk.window,
                       chunk.steps[static_cast<std::size_t>(i)], workspace);
      }
    }
  }

  Selection choose_recent_and_heaviest(std::span<const WindowChoice> rows, std::int64_t layers,
                                       Stream&) override {
    std::int64_t longest = 0;
    std::int64_t capacity = 0;
    for (const WindowChoice& row : rows) {
      check_window(row.window);
      TRIPHASE_CHECK(row.context > 0 && row.context <= row.window.tokens && row.local >= 0 &&
                         row.local <= std::min(row.total, row.context),
                     "choose_recent_and_heaviest: a row");
      longest = std::max(longest, row.context);
      capacity = std::max(capacity, std::min(row.total, row.context));
    }
    const std::int64_t words = cpu::window_choice_words(longest);
    const auto of_layer = std::ssize(rows);
    const std::int64_t count = layers * of_layer;
    make_lists(count, 1, capacity, 0);
    row_.resize(static_cast<std::size_t>(words * pool_->threads()));
    pool_->parallel_for(count, [&](std::int64_t i, int worker) {
      WindowChoice row = rows[static_cast<std::size_t>(i % of_layer)];
      row.window = in_layer(row.window, i / of_layer);
      cpu::choose_recent_and_heaviest(row, row_.data() + worker * words,
                                      tokens_.data() + i * capacity);
      counts_[static_cast<std::size_t>(i)] =
          static_cast<std::int32_t>(std::min(row.total, row.context));
    });
    return lists(count, 1, capacity, false);
  }

  Selection choose_ranges(std::span<const TokenRanges> rows, Stream&) override {
    std::int64_t capacity = 0;
    for (const TokenRanges& row : rows) capacity = std::max(capacity, row.tokens());
    const auto count = std::ssize(rows);
    make_lists(count, 1, capacity, 0);
    for (std::int64_t i = 0; i < count; ++i) {
      const TokenRanges& row = rows[static_cast<std::size_t>(i)];
      std::int32_t* to = tokens_.data() + i * capacity;
      for (const TokenRange& range : {row.first, row.second}) {
        for (std::int32_t at = 0; at < range.count; ++at) *to++ = range.start + at * range.stride;
      }
      counts_[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(row.tokens());
    }
    return lists(count, 1, capacity, false);
  }

  void keep_all(std::span<const KeptTokens> kept, std::int64_t tokens, Stream&) override {
    for (const KeptTokens& one : kept) {
      TRIPHASE_CHECK(holds_tokens(one, tokens), "keep_all: no room for the tokens");
      for (std::int64_t list = 0; list < one.lists; ++list) {
        std::int32_t* first = one.tokens + list * one.room;
        std::iota(first, first + tokens, 0);
        std::fill_n(one.sums + list * one.room, tokens, 0.0F);
      }
    }
  }

  [[nodiscard]] Selection keep_heaviest(std::span<const KeptRow> rows, std::int64_t layers,
                                        Stream&) override {
    if (rows.empty()) return {};
    const std::int64_t of_row = rows.front().kept.lists;
    const std::int64_t of_layer = std::ssize(rows) * of_row;
    std::int64_t longest = 0;
    std::int64_t capacity = 0;
    for (const KeptRow& row : rows) {
      TRIPHASE_CHECK(is_kept_row(row) && row.kept.lists == of_row, "keep_heaviest: a row");
      longest = std::max(longest, row.count + row.added);
      capacity = std::max(capacity, tokens_left(row));
    }
    const std::int64_t count = layers * std::ssize(rows);
    const std::int64_t words = cpu::keep_heaviest_words(longest);
    make_lists(count, of_row, capacity, 0);
    kept_.resize(static_cast<std::size_t>(words * pool_->threads()));
    pool_->parallel_for(count * of_row, [&](std::int64_t i, int worker) {
      KeptRow row = rows[static_cast<std::size_t>(i % of_layer / of_row)];
      row.kept = in_layer(row.kept, i / of_layer);
      cpu::keep_heaviest(row, i % of_row, kept_.data() + worker * words,
                         tokens_.data() + i * capacity);
      counts_[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(tokens_left(row));
    });
    return lists(count, of_row, capacity, false);
  }

  void add_kept_weights(const Selection& attended, std::int64_t heads,
                        std::span<const KeptWeights> rows, std::int64_t layer, bool,
                        Stream&) override {
    for (const KeptWeights& row : rows) {
      TRIPHASE_CHECK(has_scores(attended, heads) && holds_tokens(row.kept, row.count) &&
                         row.kept.lists == attended.lists && row.attended >= 0 &&
                         row.attended < attended.rows && row.count <= attended.capacity,
                     "add_kept_weights: a row of the selection");
    }
    pool_->parallel_for(std::ssize(rows) * attended.lists, [&](std::int64_t i, int) {
      const KeptWeights& row = rows[static_cast<std::size_t>(i / attended.lists)];
      const std::int64_t list = i % attended.lists;
      float* sums = in_layer(row.kept, layer).sums + list * row.kept.room;
      std::array<float, kWeightsAtOnce> weights;
      for (std::int64_t first = 0; first < row.count; first += kWeightsAtOnce) {
        const std::int64_t end = std::min(first + kWeightsAtOnce, row.count);
        cpu::sum_token_weights(attended, heads, row.attended * attended.lists + list, first, end,
                               weights.data());
        for (std::int64_t t = first; t < end; ++t) {
          sums[t] += weights[static_cast<std::size_t>(t - first)];
        }
      }
    });
  }

  void bound_pages(const KvLayerView& cache, std::span<const AttentionSegment> rows,
                   std::span<const PageBounds> bounds, std::int64_t page_tokens, std::int64_t layer,
                   Stream&) override {
    TRIPHASE_CHECK(rows.size() == bounds.size() && page_tokens > 0, "bound_pages: bounds");
    for (std::size_t i = 0; i < rows.size(); ++i) {
      check_keys(cache, rows[i]);
      TRIPHASE_CHECK(bounds[i].data != nullptr && bounds[i].first_token >= 0,
                     "bound_pages: bounds");
      if (bounds[i].first_token >= rows[i].context_tokens) continue;
      PageBounds own = bounds[i];
      own.data = in_layer(own.data, own.layer_bytes, layer);
      cpu::bound_pages(*pool_, cache, rows[i], own, page_tokens);
    }
  }

  [[nodiscard]] Selection choose_by_pages(ConstMatrix q, std::int64_t heads, std::int64_t kv_heads,
                                          std::span<const AttentionSegment> rows,
                                          std::span<const PageChoice> choices,
                                          std::int64_t page_tokens, std::int64_t layer,
                                          Stream&) override {
    TRIPHASE_CHECK(rows.size() == choices.size() && page_tokens > 0, "choose_by_pages: shapes");
    std::int64_t capacity = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      check_query(q, rows[i].query_begin, heads, kv_heads);
      TRIPHASE_CHECK(choices[i].bounds != nullptr && choices[i].pages > 0 &&
                         choices[i].pages <= ceil_div(rows[i].context_tokens, page_tokens),
                     "choose_by_pages: shapes");
      capacity =
          std::max(capacity, std::min(choices[i].pages * page_tokens, rows[i].context_tokens));
    }
    const auto count = std::ssize(rows);
    make_lists(count, kv_heads, capacity, 0);
    for (std::int64_t i = 0; i < count; ++i) {
      const AttentionSegment& row = rows[static_cast<std::size_t>(i)];
      const PageChoice& choice = choices[static_cast<std::size_t>(i)];
      const std::int64_t pages = ceil_div(row.context_tokens, page_tokens);
      scores_.resize(static_cast<std::size_t>(kv_heads * pages));
      cpu::score_pages(*pool_, q, row.query_begin, heads, kv_heads,
                       in_layer(choice.bounds, choice.layer_bytes, layer), pages, scores_.data());
      chosen_.resize(static_cast<std::size_t>(choice.pages));
      for (std::int64_t head = 0; head < kv_heads; ++head) {
        choose_best_and_newest(scores_.data() + head * pages, pages, choice.pages, chosen_.data());
        const std::int64_t list = i * kv_heads + head;
        std::int32_t* to = tokens_.data() + list * capacity;
        for (const std::int32_t page : chosen_) {
          const std::int64_t begin = page * page_tokens;
          const std::int64_t end = std::min(begin + page_tokens, row.context_tokens);
          for (std::int64_t t = begin; t < end; ++t) *to++ = static_cast<std::int32_t>(t);
        }
        counts_[static_cast<std::size_t>(list)] =
            static_cast<std::int32_t>(to - (tokens_.data() + list * capacity));
      }
    }
    return lists(count, kv_heads, capacity, false);
  }

  void score_centroids(ConstMatrix q, std::int64_t row, std::int64_t heads, std::int64_t kv_heads,
                       const Centroids& centroids, float scale, float* scores, Stream&) override {
    check_query(q, row, heads, kv_heads);
    TRIPHASE_CHECK(centroids.count >= 0 &&
                       (centroids.count == 0 || (centroids.means != nullptr &&
                                                 centroids.keys != nullptr && scores != nullptr)),
                   "score_centroids: shapes");
    cpu::score_centroids(*pool_, q, row, heads, kv_heads, centroids, scale, scores);
  }

  [[nodiscard]] Selection choose_by_clusters(ConstMatrix q, std::int64_t heads,
                                             std::int64_t kv_heads,
                                             std::span<const AttentionSegment> rows,
                                             std::size_t decoded, const KeyClusters& clusters,
                                             float scale, ClusterCounts* counts, Stream&) override {
    TRIPHASE_CHECK(clusters.tokens >= 0 && clusters.fine.count > 0 &&
                       clusters.fine.means != nullptr && clusters.fine.keys != nullptr &&
                       clusters.labels != nullptr && clusters.coarse.count >= 0 &&
                       (clusters.coarse.count == 0 ||
                        (clusters.coarse.means != nullptr && clusters.coarse.keys != nullptr &&
                         clusters.parents != nullptr)),
                   "choose_by_clusters: clusters");
    std::int64_t capacity = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const AttentionSegment& row = rows[i];
      const std::int64_t before = row.context_tokens - row.query_count;
      check_query(q, row.query_begin, heads, kv_heads);
      TRIPHASE_CHECK(
          row.query_count > 0 && row.query_begin + row.query_count <= q.rows &&
              (i < decoded ? row.query_count == 1 && before >= 0 : before >= clusters.tokens),
          "choose_by_clusters: queries");
      capacity = std::max(capacity, row.context_tokens);
    }
    const auto count = std::ssize(rows);
    make_lists(count, kv_heads, capacity, 0);
    for (std::int64_t i = 0; i < count; ++i) {
      std::int32_t* const own = counts_.data() + i * kv_heads;
      clusters_.choose(*pool_, q, heads, kv_heads, rows[static_cast<std::size_t>(i)], clusters,
                       scale, tokens_.data() + i * kv_heads * capacity, capacity, own);
      if (counts == nullptr) continue;
      const std::uint64_t listed = std::accumulate(own, own + kv_heads, std::uint64_t{0});
      if (i >= static_cast<std::int64_t>(decoded)) {
        // All but the last query see fewer of the list's tokens, each one more than the one before.
        const auto queries =
            static_cast<std::uint64_t>(rows[static_cast<std::size_t>(i)].query_count);
        const std::uint64_t unseen = queries * (queries - 1) / 2;
        counts->prompt_tokens += queries * listed - static_cast<std::uint64_t>(kv_heads) * unseen;
        continue;
      }
      counts->tokens += listed;
      counts->centroids += static_cast<std::uint64_t>(clusters_.centroids());
    }
    Selection chosen = lists(count, kv_heads, capacity, false);
    chosen.all_from = clusters.tokens;
    return chosen;
  }

  void sum_values(ConstMatrix v, std::span<const ValueRows> parts, std::int64_t layer, bool,
                  Stream&) override {
    for (const ValueRows& part : parts) {
      TRIPHASE_CHECK(v.dtype == DType::kF32 && (part.rows == 0 || v.data != nullptr) &&
                         part.sums != nullptr && part.first_row >= 0 && part.rows >= 0 &&
                         part.first_row + part.rows <= v.rows,
                     "sum_values: shapes");
      float* sums = in_layer(part.sums, part.layer_bytes, layer);
      if (part.tokens == 0 && part.rows > 0) std::fill_n(sums, v.cols, 0.0F);
      for (std::int64_t row = part.first_row; row < part.first_row + part.rows; ++row) {
        const float* from = static_cast<const float*>(v.data) + row * v.row_stride;
        for (std::int64_t c = 0; c < v.cols; ++c) sums[c] += from[c];
      }
    }
  }

 private:
  static void check_row(const ConstMatrix& q, std::int64_t heads, const KvLayerView& cache,
                        const AttentionSegment& row) {
    check_keys(cache, row);
    check_query(q, row.query_begin, heads, cache.kv_heads);
    TRIPHASE_CHECK(q.cols == heads * cache.head_dim, "sparse: the cache's heads");
  }

  void add_columns(ConstMatrix q, std::int64_t heads, const KvLayerView& cache,
                   const PromptColumns& chunk, ScoreScale scale, Workspace workspace) {
    const AttentionSegment& segment = chunk.segment;
    check_keys(cache, segment);
    TRIPHASE_CHECK(segment.query_count <= segment.context_tokens && segment.query_begin >= 0 &&
                       segment.query_begin + segment.query_count <= q.rows &&
                       q.cols == heads * cache.head_dim && chunk.sums != nullptr &&
                       chunk.stride >= segment.context_tokens && segment.chosen == nullptr &&
                       segment.log_sums != nullptr,
                   "accumulate_columns: shapes");
    if (segment.query_count == 0) return;
    check_query(q, segment.query_begin, heads, cache.kv_heads);
    const std::int64_t first = segment.context_tokens - segment.query_count;
    TRIPHASE_CHECK(!cache.quantized() || first / cache.page_tokens ==
                                             (segment.context_tokens - 1) / cache.page_tokens,
                   "accumulate_columns: INT8 queries of more than one block in a segment");
    cpu::accumulate_columns(*pool_, {q, heads, cache, segment, scale, chunk.sums, chunk.stride},
                            shape_of(heads, cache, segment, workspace), workspace);
  }

  // `row` has one query.
  void add_prompt_row(ConstMatrix q, std::int64_t heads, const KvLayerView& cache,
                      const AttentionSegment& row, ScoreScale scale, const WeightWindow& window,
                      const WindowStep& step, Workspace workspace) {
    const std::int64_t context = row.context_tokens;
    check_step(window, step, context);
    TRIPHASE_CHECK(step.count == context && step.expired == 0,
                   "add_prompt_rows: a row that is not dense, or in which others expire");
    row_.assign(static_cast<std::size_t>(cache.kv_heads * context), 0.0F);
    add_columns(q, heads, cache, {.segment = row, .sums = row_.data(), .stride = context}, scale,
                workspace);
    for (std::int64_t head = 1; head < cache.kv_heads; ++head) {
      for (std::int64_t t = 0; t < context; ++t) {
        row_[static_cast<std::size_t>(t)] += row_[static_cast<std::size_t>(head * context + t)];
      }
    }
    cpu::enter_weights(window, step, 0, std::span(row_).first(static_cast<std::size_t>(context)),
                       nullptr);
  }

  // Room for lists of so many rows; shares of `heads` query heads each.
  void make_lists(std::int64_t rows, std::int64_t lists, std::int64_t capacity,
                  std::int64_t heads) {
    tokens_.resize(static_cast<std::size_t>(rows * lists * capacity));
    counts_.resize(static_cast<std::size_t>(rows * lists));
    alpha_.resize(static_cast<std::size_t>(rows * heads));
  }
  [[nodiscard]] Selection lists(std::int64_t rows, std::int64_t lists, std::int64_t capacity,
                                bool shares) const {
    return {rows,           lists,          capacity,
            tokens_.data(), counts_.data(), shares ? alpha_.data() : nullptr};
  }

  // The last of `size` and, of the others, the count - 1 with the highest scores; ascending.
  void choose_best_and_newest(const float* scores, std::int64_t size, std::int64_t count,
                              std::int32_t* to) {
    scratch_.resize(static_cast<std::size_t>(select_top_words(size)));
    cpu::select_top(scores, size - 1, count - 1, scratch_.data(), to);
    to[count - 1] = static_cast<std::int32_t>(size - 1);
  }

  // Fills list `at` from the weights of its KV head's query heads; alpha: of all heads of the row.
  void choose_by_weights(std::int64_t at, std::int64_t kv_head, std::int64_t context,
                         std::int64_t group, std::int64_t budget, std::int64_t capacity,
                         float* alpha) {
    const float* weights = weights_.data() + kv_head * group * context;
    scores_.assign(static_cast<std::size_t>(context), 0.0F);
    for (std::int64_t i = 0; i < group; ++i) {
      for (std::int64_t t = 0; t < context; ++t) {
        scores_[static_cast<std::size_t>(t)] += weights[i * context + t];
      }
    }
    const std::span chosen(tokens_.data() + at * capacity, static_cast<std::size_t>(budget));
    choose_best_and_newest(scores_.data(), context, budget, chosen.data());
    counts_[static_cast<std::size_t>(at)] = static_cast<std::int32_t>(budget);
    for (std::int64_t i = 0; i < group; ++i) {
      float share = 0;
      for (const std::int32_t token : chosen) share += weights[i * context + token];
      alpha[kv_head * group + i] = share;
    }
  }

  [[nodiscard]] AttentionShape shape_of(std::int64_t heads, const KvLayerView& cache,
                                        const AttentionSegment& keys, Workspace workspace) const {
    const AttentionShape shape{.heads = heads,
                               .kv_heads = cache.kv_heads,
                               .head_dim = cache.head_dim,
                               .max_query_rows = 1,
                               .max_context = keys.context_tokens,
                               .threads = pool_->threads()};
    TRIPHASE_CHECK(reinterpret_cast<std::uintptr_t>(workspace.data) % 64 == 0 &&
                       workspace.bytes >= sparse_workspace_bytes(shape),
                   "sparse: workspace smaller than kernels/sizing says or not aligned");
    return shape;
  }

  ThreadPool* pool_;
  Device* memory_;
  // The last Selection.
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> counts_;
  std::vector<float> alpha_;
  std::vector<ValueMean> means_;
  // Scratch of one choice, kept to reuse its memory.
  std::vector<float> weights_;
  std::vector<float> scores_;
  std::vector<std::int32_t> chosen_;
  std::vector<std::int32_t> scratch_;
  std::vector<float> row_;          // of weights, or what choose_recent_and_heaviest works with
  std::vector<std::int32_t> kept_;  // what keep_heaviest works with
  cpu::ClusterChooser clusters_;
};

}  // namespace

std::unique_ptr<SparseOps> make_cpu_sparse_ops(ThreadPool& pool, Device& memory) {
  return std::make_unique<CpuSparseOps>(pool, memory);
}

}  // namespace triphase
