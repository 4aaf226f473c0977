#include "kernels/cuda/cluster_choice.h"

#include <algorithm>

#include "kernels/cuda/clusters.h"

namespace triphase::cuda {
namespace {

bool is_level(const Centroids& level) {
  return level.count > 0 && level.means != nullptr && level.keys != nullptr;
}

// What some rows choose from, and memory for how they do.
struct Choice {
  const KeyClusters& clusters;
  const std::int32_t* contexts = nullptr;  // on the device
  std::int64_t kv_heads = 0;
  std::int64_t rows = 0;     // times KV heads
  std::int64_t queries = 0;  // of a prompt that choose together; 0: decoded rows
  std::int64_t terms = 1;    // that scores are sums of: thresholds are as many times as high
  float* scores = nullptr;
  float* coarse_scores = nullptr;
  std::uint8_t* alive = nullptr;
};

// score(level, alive, scores): of a level's clusters. Counts the centroids of decoded rows.
template <class Score>
void choose_tokens(const Choice& choice, const Score& score, const MadeLists& lists,
                   ClusterCounts* totals, StreamHandle stream) {
  const KeyClusters& clusters = choice.clusters;
  const auto terms = static_cast<double>(choice.terms);
  const std::uint8_t* alive = nullptr;
  if (clusters.coarse.count > 0) {
    score(clusters.coarse, nullptr, choice.coarse_scores);
    find_alive_clusters({.coarse_scores = choice.coarse_scores,
                         .coarse = clusters.coarse.count,
                         .parents = clusters.parents,
                         .fine = clusters.fine.count,
                         .threshold = clusters.coarse_threshold * terms,
                         .kv_heads = choice.kv_heads,
                         .rows = choice.rows},
                        choice.alive, choice.queries > 0 ? nullptr : totals, stream);
    alive = choice.alive;
  }
  score(clusters.fine, alive, choice.scores);
  choose_clusters({.scores = choice.scores,
                   .alive = alive,
                   .clusters = clusters.fine.count,
                   .threshold = clusters.threshold * terms,
                   .labels = clusters.labels,
                   .tokens = clusters.tokens,
                   .contexts = choice.contexts,
                   .kv_heads = choice.kv_heads,
                   .rows = choice.rows,
                   .queries = choice.queries},
                  lists.tokens, lists.capacity, lists.counts, totals, stream);
}

// Queries that score the clusters, from the first one on, and memory for how they do.
struct ClusterCall {
  const KeyClusters& clusters;
  ScoreQueries queries;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  float scale = 1.0F;
  std::byte* base = nullptr;
  StreamHandle stream;

  template <class T>
  [[nodiscard]] T* at(std::int64_t offset) const {
    return reinterpret_cast<T*>(base + offset);
  }
};

// Decoded rows whose queries follow each other. On the device: how many clusters the levels have,
// fine and coarse, and the rows' contexts.
void choose_for_rows(const ClusterCall& call, std::int64_t rows, const std::int32_t* levels,
                     const std::int32_t* contexts, const MadeLists& lists, ClusterCounts* totals) {
  const KeyClusters& clusters = call.clusters;
  const CudaClusterScratch scratch = cuda_cluster_scratch(
      call.queries.heads, call.kv_heads, clusters.fine.count, clusters.coarse.count, rows);
  const std::int64_t lists_each = rows * call.kv_heads;
  const auto score = [&](const Centroids& level, const std::uint8_t* alive, float* scores) {
    const ScoreLogits logits{.logits = call.at<float>(scratch.logits_at),
                             .partials = call.at<float>(scratch.partials_at),
                             .length_stride = level.count};
    score_centroids({.centroids = level.means,
                     .keys = level.keys,
                     .alive = alive,
                     .count = level.count,
                     .sequences = rows,
                     .kv_heads = call.kv_heads,
                     .head_dim = call.head_dim},
                    call.queries, call.scale, logits, call.stream);
    const std::int32_t* count = &level == &clusters.fine ? levels : levels + 1;
    group_scores(logits, count, lists_each, lists_each, call.queries.heads / call.kv_heads,
                 level.count, GroupReduce::kProbabilityMean, scores,
                 call.at<float>(scratch.totals_at), call.stream);
  };
  choose_tokens({.clusters = clusters,
                 .contexts = contexts,
                 .kv_heads = call.kv_heads,
                 .rows = lists_each,
                 .scores = call.at<float>(scratch.scores_at),
                 .coarse_scores = call.at<float>(scratch.coarse_scores_at),
                 .alive = call.at<std::uint8_t>(scratch.alive_at)},
                score, lists, totals, call.stream);
}

// `count` queries of a prompt that choose together: scores are sums over them and the query heads
// of a KV head. On the device: the page that all centroids lie in, and the context up to the last
// query.
void choose_for_unit(const ClusterCall& call, std::int64_t count, const std::int32_t* page,
                     const std::int32_t* context, const MadeLists& lists, ClusterCounts* totals) {
  const KeyClusters& clusters = call.clusters;
  const CudaClusterUnitScratch scratch = cuda_cluster_unit_scratch(
      call.queries.heads, call.kv_heads, clusters.fine.count, clusters.coarse.count);
  const auto score = [&](const Centroids& level, const std::uint8_t* alive, float* sums) {
    for (std::int64_t first = 0; first < count; first += kColumnSliceQueries) {
      PrefillColumns columns;
      columns.q = call.queries.q + first * call.queries.q_stride;
      columns.q_stride = call.queries.q_stride;
      columns.queries = columns.row_end = std::min(kColumnSliceQueries, count - first);
      columns.k = level.means;
      columns.dtype = DType::kF32;
      columns.pages = page;
      columns.page_tokens = columns.keys = level.count;
      columns.heads = call.queries.heads;
      columns.kv_heads = call.kv_heads;
      columns.head_dim = call.head_dim;
      columns.scale = call.scale;
      columns.key_counts = level.keys;
      columns.key_alive = alive;
      columns.fresh_sums = first == 0;
      float* log_sums = call.at<float>(scratch.log_sums_at);
      prefill_log_sums(columns, log_sums, call.at<float>(scratch.log_partials_at), call.stream);
      prefill_colsum(columns, log_sums, sums, level.count, call.stream);
    }
  };
  choose_tokens({.clusters = clusters,
                 .contexts = context,
                 .kv_heads = call.kv_heads,
                 .rows = call.kv_heads,
                 .queries = count,
                 .terms = count * (call.queries.heads / call.kv_heads),
                 .scores = call.at<float>(scratch.scores_at),
                 .coarse_scores = call.at<float>(scratch.coarse_scores_at),
                 .alive = call.at<std::uint8_t>(scratch.alive_at)},
                score, lists, totals, call.stream);
}

}  // namespace

Selection choose_by_clusters(const SparseCall& call, const ConstMatrix& q, std::int64_t heads,
                             std::int64_t kv_heads, std::span<const AttentionSegment> rows,
                             std::size_t decoded, const KeyClusters& clusters, float scale,
                             ClusterCounts* counts) {
  std::vector<std::int32_t>& words = call.memory.words;
  // The levels' sizes, and the page that centroids lie in as if they were a cache's keys.
  words = {static_cast<std::int32_t>(clusters.fine.count),
           static_cast<std::int32_t>(clusters.coarse.count), 0};
  const auto first_context = static_cast<std::ptrdiff_t>(words.size());
  std::vector<RowLimits> limits;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const AttentionSegment& row = rows[i];
    const auto shape = [&] {
      return shape_of(q, row.query_begin, heads, kv_heads) + ", " +
             shape_text({{"query_count", row.query_count},
                         {"context_tokens", row.context_tokens},
                         {"clusters", clusters.fine.count},
                         {"tokens", clusters.tokens}});
    };
    check_query(q, row.query_begin, heads, kv_heads, "choose_by_clusters", shape);
    const std::int64_t before = row.context_tokens - row.query_count;
    require(row.query_count > 0 && row.query_begin + row.query_count <= q.rows &&
                (i < decoded ? row.query_count == 1 && before >= 0 : before >= clusters.tokens),
            "choose_by_clusters",
            "decoded rows of one query each, prompts' queries behind the clustered tokens", shape);
    require(is_level(clusters.fine) && clusters.labels != nullptr && clusters.tokens >= 0 &&
                (clusters.coarse.count == 0 ||
                 (is_level(clusters.coarse) && clusters.parents != nullptr)),
            "choose_by_clusters", "no clusters", shape);
    limits.push_back({row.context_tokens, 0});
    words.push_back(static_cast<std::int32_t>(row.context_tokens));
  }
  if (rows.empty()) return {};
  const MadeLists lists = make_lists(call, limits, kv_heads, 0);
  const std::int32_t* sent = call.send(std::span<const std::int32_t>(words));
  Selection chosen = lists.selection(rows.size(), kv_heads, false);
  chosen.all_from = clusters.tokens;
  if (call.announces()) return chosen;
  const std::int64_t row_bytes =
      cuda_cluster_scratch(heads, kv_heads, clusters.fine.count, clusters.coarse.count, 1).bytes;
  std::byte* base = call.scratch(row_bytes);
  const std::size_t most = call.memory.scratch.bytes() / static_cast<std::size_t>(row_bytes);
  const auto call_from = [&](std::size_t row) {
    return ClusterCall{clusters,   query_of(q, rows[row].query_begin, heads),
                       kv_heads,   q.cols / heads,
                       scale,      base,
                       call.handle};
  };
  const auto alike = [](std::size_t, std::size_t) { return true; };
  for_runs(rows.first(decoded), most, alike, [&](std::size_t first, std::size_t run) {
    choose_for_rows(call_from(first), static_cast<std::int64_t>(run), sent,
                    sent + first_context + first, lists.from(first, 0, kv_heads), counts);
  });
  if (decoded == rows.size()) return chosen;
  base = call.scratch(
      cuda_cluster_unit_scratch(heads, kv_heads, clusters.fine.count, clusters.coarse.count).bytes);
  for (std::size_t i = decoded; i < rows.size(); ++i) {
    choose_for_unit(call_from(i), rows[i].query_count, sent + 2, sent + first_context + i,
                    lists.from(i, 0, kv_heads), counts);
  }
  return chosen;
}

}  // namespace triphase::cuda
