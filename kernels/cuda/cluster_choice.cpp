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

// Some rows whose queries follow each other.
class ClusterCall {
 public:
  ClusterCall(const KeyClusters& clusters, const ScoreQueries& queries, std::int64_t rows,
              std::int64_t kv_heads, std::int64_t head_dim, float scale, std::byte* base,
              StreamHandle stream)
      : clusters_(clusters),
        queries_(queries),
        rows_(rows),
        kv_heads_(kv_heads),
        head_dim_(head_dim),
        scale_(scale),
        base_(base),
        stream_(stream),
        scratch_(cuda_cluster_scratch(queries.heads, kv_heads, clusters.fine.count,
                                      clusters.coarse.count, rows)) {}

  // On the device: how many clusters the levels have, fine and coarse, and the rows' contexts.
  void choose(const std::int32_t* levels, const std::int32_t* contexts, const MadeLists& lists,
              ClusterCounts* totals) const {
    const auto score_level = [&](const Centroids& level, const std::uint8_t* alive, float* scores) {
      score(level, alive, &level == &clusters_.fine ? levels : levels + 1, scores);
    };
    choose_tokens({.clusters = clusters_,
                   .contexts = contexts,
                   .kv_heads = kv_heads_,
                   .rows = rows_ * kv_heads_,
                   .scores = at<float>(scratch_.scores_at),
                   .coarse_scores = at<float>(scratch_.coarse_scores_at),
                   .alive = at<std::uint8_t>(scratch_.alive_at)},
                  score_level, lists, totals, stream_);
  }

 private:
  template <class T>
  [[nodiscard]] T* at(std::int64_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }

  // scores [row][count] of a level's centroids; `count`: on the device.
  void score(const Centroids& level, const std::uint8_t* alive, const std::int32_t* count,
             float* scores) const {
    const ScoreLogits logits{.logits = at<float>(scratch_.logits_at),
                             .partials = at<float>(scratch_.partials_at),
                             .length_stride = level.count};
    score_centroids({.centroids = level.means,
                     .keys = level.keys,
                     .alive = alive,
                     .count = level.count,
                     .sequences = rows_,
                     .kv_heads = kv_heads_,
                     .head_dim = head_dim_},
                    queries_, scale_, logits, stream_);
    const std::int64_t lists = rows_ * kv_heads_;
    group_scores(logits, count, lists, lists, queries_.heads / kv_heads_, level.count,
                 GroupReduce::kProbabilityMean, scores, at<float>(scratch_.totals_at), stream_);
  }

  const KeyClusters& clusters_;
  ScoreQueries queries_;
  std::int64_t rows_;
  std::int64_t kv_heads_;
  std::int64_t head_dim_;
  float scale_;
  std::byte* base_;
  StreamHandle stream_;
  CudaClusterScratch scratch_;
};

// A prompt's queries that choose together. Scores are sums over them and the query heads of a KV
// head.
class UnitCall {
 public:
  UnitCall(const KeyClusters& clusters, const ScoreQueries& queries, std::int64_t count,
           std::int64_t kv_heads, std::int64_t head_dim, float scale, std::byte* base,
           StreamHandle stream)
      : clusters_(clusters),
        queries_(queries),
        count_(count),
        kv_heads_(kv_heads),
        head_dim_(head_dim),
        scale_(scale),
        base_(base),
        stream_(stream),
        scratch_(cuda_cluster_unit_scratch(queries.heads, kv_heads, clusters.fine.count,
                                           clusters.coarse.count)) {}

  // On the device: the page that all centroids lie in, and the context up to the last query.
  void choose(const std::int32_t* page, const std::int32_t* context, const MadeLists& lists,
              ClusterCounts* totals) const {
    const auto score_level = [&](const Centroids& level, const std::uint8_t* alive, float* scores) {
      sum_scores(level, alive, page, scores);
    };
    choose_tokens({.clusters = clusters_,
                   .contexts = context,
                   .kv_heads = kv_heads_,
                   .rows = kv_heads_,
                   .queries = count_,
                   .terms = count_ * (queries_.heads / kv_heads_),
                   .scores = at<float>(scratch_.scores_at),
                   .coarse_scores = at<float>(scratch_.coarse_scores_at),
                   .alive = at<std::uint8_t>(scratch_.alive_at)},
                  score_level, lists, totals, stream_);
  }

 private:
  template <class T>
  [[nodiscard]] T* at(std::int64_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }

  // sums [kv_head][count] of a level's centroids.
  void sum_scores(const Centroids& level, const std::uint8_t* alive, const std::int32_t* page,
                  float* sums) const {
    for (std::int64_t first = 0; first < count_; first += kColumnSliceQueries) {
      PrefillColumns call;
      call.q = queries_.q + first * queries_.q_stride;
      call.q_stride = queries_.q_stride;
      call.queries = call.row_end = std::min(kColumnSliceQueries, count_ - first);
      call.k = level.means;
      call.dtype = DType::kF32;
      call.pages = page;
      call.page_tokens = call.keys = level.count;
      call.heads = queries_.heads;
      call.kv_heads = kv_heads_;
      call.head_dim = head_dim_;
      call.scale = scale_;
      call.key_counts = level.keys;
      call.key_alive = alive;
      call.fresh_sums = first == 0;
      float* log_sums = at<float>(scratch_.log_sums_at);
      prefill_log_sums(call, log_sums, at<float>(scratch_.log_partials_at), stream_);
      prefill_colsum(call, log_sums, sums, level.count, stream_);
    }
  }

  const KeyClusters& clusters_;
  ScoreQueries queries_;
  std::int64_t count_;
  std::int64_t kv_heads_;
  std::int64_t head_dim_;
  float scale_;
  std::byte* base_;
  StreamHandle stream_;
  CudaClusterUnitScratch scratch_;
};

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
  const auto alike = [](std::size_t, std::size_t) { return true; };
  for_runs(rows.first(decoded), most, alike, [&](std::size_t first, std::size_t run) {
    ClusterCall(clusters, query_of(q, rows[first].query_begin, heads),
                static_cast<std::int64_t>(run), kv_heads, q.cols / heads, scale, base, call.handle)
        .choose(sent, sent + first_context + first, lists.from(first, 0, kv_heads), counts);
  });
  if (decoded == rows.size()) return chosen;
  base = call.scratch(
      cuda_cluster_unit_scratch(heads, kv_heads, clusters.fine.count, clusters.coarse.count).bytes);
  for (std::size_t i = decoded; i < rows.size(); ++i) {
    UnitCall(clusters, query_of(q, rows[i].query_begin, heads), rows[i].query_count, kv_heads,
             q.cols / heads, scale, base, call.handle)
        .choose(sent + 2, sent + first_context + i, lists.from(i, 0, kv_heads), counts);
  }
  return chosen;
}

}  // namespace triphase::cuda
