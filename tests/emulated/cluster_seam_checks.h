#pragma once

// Squeezed Attention's choices in a CUDA SparseOps, beside the CPU's.

#include "tests/emulated/sparse_seam_checks.h"

namespace triphase::cuda {

// Squeezed: clusters that have no keys or are not alive score exactly 0, also when none is left.
inline void check_centroids(const Seam& seam) {
  Cpu host;
  for (const std::int64_t count : {1, 130}) {
    std::mt19937 random(9);
    const std::vector<float> means = random_floats(random, kKvHeads * count * kDim, 3.0F);
    std::vector<float> keys;
    std::vector<std::uint8_t> some;
    for (std::int64_t i = 0; i < kKvHeads * count; ++i) keys.push_back(static_cast<float>(i % 4));
    for (std::int64_t i = 0; i < kKvHeads * count; ++i) some.push_back(i % 5 != 0 ? 1 : 0);
    const std::vector<std::uint8_t> none(some.size(), 0);
    for (const std::vector<std::uint8_t>& alive : {std::vector<std::uint8_t>{}, some, none}) {
      const auto scores = [&](const Seam& on) {
        const Queries q(on.device, 2, 8);
        const DeviceArray<float> own_means(on.device, means);
        const DeviceArray<float> own_keys(on.device, keys);
        const HostVector<std::uint8_t> own_alive(alive.begin(), alive.end());
        HostVector<float> result(static_cast<std::size_t>(kKvHeads * count), -1.0F);
        on.sparse.score_centroids(
            q.view(), 1, kHeads, kKvHeads,
            {own_means.data(), own_keys.data(), count, alive.empty() ? nullptr : own_alive.data()},
            0.4F, result.data(), on.stream);
        return result;
      };
      expect_near(scores(seam), scores(host.seam()), 2e-5, 1e-12, "centroids");
    }
  }
}

// Clusters of `tokens` tokens in either memory.
class SeamClusters {
 public:
  SeamClusters(Device& device, std::int64_t kv_heads, std::int64_t dim, std::int64_t tokens,
               std::int64_t fine, std::int64_t coarse)
      : fine_means_(device, numbers(kv_heads * fine * dim, 1)),
        coarse_means_(device, numbers(kv_heads * coarse * dim, 2)),
        fine_keys_(device, keys(kv_heads * fine)),
        coarse_keys_(device, keys(kv_heads * coarse)),
        labels_(device, ids(kv_heads * tokens, fine, 3)),
        parents_(device, ids(kv_heads * fine, coarse, 4)),
        tokens_(tokens),
        fine_(fine),
        coarse_(coarse) {}

  // Thresholds far below the mean score of a key: few clusters hold most of the softmax.
  [[nodiscard]] KeyClusters view(bool two_levels) const {
    KeyClusters clusters;
    clusters.fine = {fine_means_.data(), fine_keys_.data(), fine_, nullptr};
    clusters.threshold = 0.03 / static_cast<double>(2 * fine_);
    clusters.labels = labels_.data();
    clusters.tokens = tokens_;
    if (!two_levels) return clusters;
    clusters.coarse = {coarse_means_.data(), coarse_keys_.data(), coarse_, nullptr};
    clusters.coarse_threshold = 0.03 / static_cast<double>(2 * coarse_);
    clusters.parents = parents_.data();
    return clusters;
  }

 private:
  static std::vector<float> numbers(std::int64_t count, std::uint32_t seed) {
    std::mt19937 random(seed);
    return random_floats(random, count, 3.0F);
  }
  // Some clusters have none.
  static std::vector<float> keys(std::int64_t count) {
    std::vector<float> all;
    for (std::int64_t i = 0; i < count; ++i) all.push_back(static_cast<float>(i % 4));
    return all;
  }
  static std::vector<std::int32_t> ids(std::int64_t count, std::int64_t most, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<std::int32_t> all;
    for (std::int64_t i = 0; i < count; ++i) {
      all.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(most)));
    }
    return all;
  }

  DeviceArray<float> fine_means_, coarse_means_, fine_keys_, coarse_keys_;
  DeviceArray<std::int32_t> labels_, parents_;
  std::int64_t tokens_, fine_, coarse_;
};

struct ClusterChoices {
  std::vector<Choices> choices;
  std::int64_t capacity = 0;
  ClusterCounts decoded;  // of the decoded rows alone
  ClusterCounts all;      // of them and of prompts behind them
};

inline constexpr std::int64_t kClustered = 260;
inline constexpr std::int64_t kLongUnit = kColumnSliceQueries + 9;

// Rows of several contexts, whose queries follow each other or not; one of them alone; and two
// prompts, of one query and of many, behind all of them.
inline ClusterChoices choose_by_clusters(const Seam& on, std::int64_t kv_heads, std::int64_t fine,
                                         bool two_levels) {
  ClusterChoices result;
  const Queries q(on.device, 6 + kLongUnit, 18);
  const SeamClusters own(on.device, kv_heads, kDim, kClustered, fine, 9);
  KeyClusters clusters = own.view(two_levels);
  const auto choose = [&](std::span<const AttentionSegment> rows, std::size_t decoded,
                          ClusterCounts* counts) {
    const Selection chosen = on.sparse.choose_by_clusters(q.view(), kHeads, kv_heads, rows, decoded,
                                                          clusters, 0.4F, counts, on.stream);
    result.choices.push_back(choices_of(on, chosen));
    return chosen;
  };
  std::vector<AttentionSegment> rows;
  for (const auto& [at, context] :
       {std::pair<std::int64_t, std::int64_t>{1, 300}, {2, 261}, {3, 200}, {0, 1}, {4, 280}}) {
    AttentionSegment& row = rows.emplace_back();
    row.query_begin = at;
    row.query_count = 1;
    row.context_tokens = context;
  }
  const std::size_t decoded = rows.size();
  const DeviceArray<ClusterCounts> counts(on.device, {ClusterCounts{}});
  result.capacity = choose(rows, decoded, counts.data()).capacity;
  result.decoded = counts.host().front();
  choose(std::span(rows).subspan(1, 1), 1, nullptr);
  EXPECT_EQ(counts.host().front().tokens, result.decoded.tokens);
  // Means over many queries lie closer together.
  clusters.threshold = 0.9 / static_cast<double>(2 * fine);
  for (const std::int64_t queries : {std::int64_t{1}, kLongUnit}) {
    AttentionSegment& row = rows.emplace_back();
    row.query_begin = queries == 1 ? 5 : 6;
    row.query_count = queries;
    row.context_tokens = kClustered + 1 + queries;
  }
  const DeviceArray<ClusterCounts> of_all(on.device, {ClusterCounts{}});
  EXPECT_EQ(choose(rows, decoded, of_all.data()).all_from, kClustered);
  result.all = of_all.host().front();
  return result;
}

// Squeezed: of groups and of heads that are alone, on one level and two.
inline void check_cluster_choices(const Seam& seam) {
  Cpu host;
  for (const auto& [kv_heads, fine] :
       {std::pair<std::int64_t, std::int64_t>{kKvHeads, 40}, {kKvHeads, 150}, {kHeads, 40}}) {
    for (const bool two_levels : {false, true}) {
      SCOPED_TRACE(std::to_string(kv_heads) + " KV heads, " + std::to_string(fine) + " clusters" +
                   (two_levels ? " of two levels" : ""));
      const ClusterChoices ours = choose_by_clusters(seam, kv_heads, fine, two_levels);
      const ClusterChoices theirs = choose_by_clusters(host.seam(), kv_heads, fine, two_levels);
      expect_same(ours.choices, theirs.choices);
      EXPECT_EQ(ours.capacity, list_capacity(300));
      for (const auto& [counted, expected] :
           {std::pair(ours.decoded, theirs.decoded), {ours.all, theirs.all}}) {
        EXPECT_EQ(counted.tokens, expected.tokens);
        EXPECT_EQ(counted.centroids, expected.centroids);
        EXPECT_EQ(counted.prompt_tokens, expected.prompt_tokens);
      }
      const auto lists = static_cast<std::uint64_t>(kv_heads);
      EXPECT_LT(ours.decoded.tokens, lists * (300 + 261 + 200 + 280) * 9 / 10);
      EXPECT_GT(ours.decoded.tokens, lists * (40 + 1 + 1 + 1 + 20) * 2);
      constexpr std::uint64_t kAll =
          kClustered + 2 + kLongUnit * kClustered + kLongUnit * (kLongUnit + 3) / 2;
      EXPECT_LT(ours.all.prompt_tokens, lists * kAll * 9 / 10);
      EXPECT_GT(ours.all.prompt_tokens, lists * kAll * 4 / 10);
    }
  }
}

}  // namespace triphase::cuda
