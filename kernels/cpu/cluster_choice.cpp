// Squeezed Attention's choice: tokens whose cluster scores enough, and all behind the clustered
// ones.

#include <algorithm>
#include <span>

#include "kernels/alive_clusters.h"
#include "kernels/cpu/cpu_sparse_kernels.h"

namespace triphase::cpu {

void ClusterChooser::score(ThreadPool& pool, ConstMatrix q, std::int64_t heads,
                           std::int64_t kv_heads, const AttentionSegment& row,
                           const Centroids& level, float scale, std::vector<float>& to) {
  to.resize(static_cast<std::size_t>(kv_heads * level.count));
  if (row.query_count == 1) {
    return score_centroids(pool, q, row.query_begin, heads, kv_heads, level, scale, to.data());
  }
  sums_.assign(to.size(), 0.0);
  for (std::int64_t query = 0; query < row.query_count; ++query) {
    score_centroids(pool, q, row.query_begin + query, heads, kv_heads, level, scale, to.data());
    for (std::size_t i = 0; i < to.size(); ++i) sums_[i] += static_cast<double>(to[i]);
  }
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i] = static_cast<float>(sums_[i] / static_cast<double>(row.query_count));
  }
}

void ClusterChooser::choose(ThreadPool& pool, ConstMatrix q, std::int64_t heads,
                            std::int64_t kv_heads, const AttentionSegment& row,
                            const KeyClusters& clusters, float scale, std::int32_t* tokens,
                            std::int64_t capacity, std::int32_t* counts) {
  const auto of_head = [](auto& all, std::int64_t head, std::int64_t count) {
    return std::span(all).subspan(static_cast<std::size_t>(head * count),
                                  static_cast<std::size_t>(count));
  };
  const std::int64_t count = clusters.fine.count;
  alive_.assign(static_cast<std::size_t>(kv_heads * count), 1);
  centroids_ = kv_heads * count;
  if (clusters.coarse.count > 0) {
    score(pool, q, heads, kv_heads, row, clusters.coarse, scale, coarse_scores_);
    centroids_ = kv_heads * clusters.coarse.count;
    for (std::int64_t head = 0; head < kv_heads; ++head) {
      centroids_ += find_alive_clusters(
          of_head(coarse_scores_, head, clusters.coarse.count), clusters.coarse_threshold,
          {clusters.parents + head * count, static_cast<std::size_t>(count)},
          of_head(alive_, head, count));
    }
  }
  Centroids fine = clusters.fine;
  fine.alive = clusters.coarse.count > 0 ? alive_.data() : nullptr;
  score(pool, q, heads, kv_heads, row, fine, scale, scores_);
  chosen_.resize(alive_.size());
  for (std::size_t i = 0; i < chosen_.size(); ++i) {
    const bool below = static_cast<double>(scores_[i]) < clusters.threshold;
    chosen_[i] = below ? 0 : alive_[i];
  }
  const std::int64_t clustered = std::min(clusters.tokens, row.context_tokens - row.query_count);
  pool.parallel_for(kv_heads, [&](std::int64_t head, int) {
    const std::int32_t* labels = clusters.labels + head * clusters.tokens;
    const std::uint8_t* chosen = chosen_.data() + head * count;
    std::int32_t* to = tokens + head * capacity;
    std::int64_t used = 0;
    // Every token is written; the next one overwrites those that are not chosen.
    for (std::int64_t t = 0; t < clustered; ++t) {
      to[used] = static_cast<std::int32_t>(t);
      used += chosen[labels[t]];
    }
    for (std::int64_t t = clustered; t < row.context_tokens; ++t) {
      to[used++] = static_cast<std::int32_t>(t);
    }
    counts[head] = static_cast<std::int32_t>(used);
  });
}

}  // namespace triphase::cpu
