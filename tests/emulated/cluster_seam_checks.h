#pragma once

// Squeezed Attention's choices in a CUDA SparseOps, beside the CPU's.

#include "tests/emulated/sparse_seam_checks.h"

namespace triphase::cuda {

// Squeezed: clusters that have no keys or are not alive score exactly 0, also when none is left.
inline void check_centroids(const Seam& seam) {
  Cpu cpu;
  const Queries q(seam.device, 2, 8);
  const Queries cpu_q(cpu.device, 2, 8);
  for (const std::int64_t count : {1, 130}) {
    std::mt19937 random(9);
    const std::vector<float> means = random_floats(random, kKvHeads * count * kDim, 3.0F);
    std::vector<float> keys;
    std::vector<std::uint8_t> some;
    for (std::int64_t i = 0; i < kKvHeads * count; ++i) keys.push_back(static_cast<float>(i % 4));
    for (std::int64_t i = 0; i < kKvHeads * count; ++i) some.push_back(i % 5 != 0 ? 1 : 0);
    const DeviceArray<float> device_means(seam.device, means);
    const DeviceArray<float> device_keys(seam.device, keys);
    const std::vector<std::uint8_t> none(some.size(), 0);
    for (const std::vector<std::uint8_t>& alive : {std::vector<std::uint8_t>{}, some, none}) {
      const HostVector<std::uint8_t> host_alive(alive.begin(), alive.end());
      HostVector<float> scores(static_cast<std::size_t>(kKvHeads * count), -1.0F);
      std::vector<float> expected(scores.size(), -1.0F);
      seam.sparse.score_centroids(q.view(), 1, kHeads, kKvHeads,
                                  {device_means.data(), device_keys.data(), count,
                                   alive.empty() ? nullptr : host_alive.data()},
                                  0.4F, scores.data(), seam.stream);
      cpu.sparse->score_centroids(
          cpu_q.view(), 1, kHeads, kKvHeads,
          {means.data(), keys.data(), count, alive.empty() ? nullptr : alive.data()}, 0.4F,
          expected.data(), *cpu.stream);
      expect_near(scores, expected, 2e-5, 1e-12, "centroids");
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

// Two prompts, of one query and of many, behind decoded rows: what they choose and attend.
inline void check_prompt_choices(const Seam& seam, Cpu& cpu,
                                 std::pair<const Queries&, const Queries&> q,
                                 std::vector<AttentionSegment> rows, std::int64_t kv_heads,
                                 KeyClusters ours, KeyClusters theirs) {
  // Means over many queries lie closer together.
  ours.threshold = theirs.threshold = 0.9 / static_cast<double>(2 * ours.fine.count);
  const std::size_t decoded = rows.size();
  for (const std::int64_t queries : {std::int64_t{1}, kColumnSliceQueries + 9}) {
    AttentionSegment& row = rows.emplace_back();
    row.query_begin = queries == 1 ? 5 : 6;
    row.query_count = queries;
    row.context_tokens = ours.tokens + 1 + queries;
  }
  const ClusterCounts none;
  const DeviceArray<ClusterCounts> counts(seam.device, {none});
  ClusterCounts cpu_counts;
  const Selection chosen = seam.sparse.choose_by_clusters(
      q.first.view(), kHeads, kv_heads, rows, decoded, ours, 0.4F, counts.data(), seam.stream);
  const Selection expected = cpu.sparse->choose_by_clusters(
      q.second.view(), kHeads, kv_heads, rows, decoded, theirs, 0.4F, &cpu_counts, *cpu.stream);
  EXPECT_EQ(chosen.all_from, ours.tokens);
  expect_same_choices(seam, chosen, cpu, expected);
  const ClusterCounts counted = counts.host().front();
  EXPECT_EQ(counted.tokens, cpu_counts.tokens);
  EXPECT_EQ(counted.centroids, cpu_counts.centroids);
  EXPECT_EQ(counted.prompt_tokens, cpu_counts.prompt_tokens);
  const std::int64_t count = rows.back().query_count;
  const std::int64_t all = ours.tokens + 2 + count * ours.tokens + count * (count + 3) / 2;
  EXPECT_LT(counted.prompt_tokens, static_cast<std::uint64_t>(kv_heads * all) * 9 / 10);
  EXPECT_GT(counted.prompt_tokens, static_cast<std::uint64_t>(kv_heads * all) * 4 / 10);
}

// Squeezed: rows of several contexts, whose queries follow each other or not, of groups and of
// heads that are alone, on one level and two; and queries of prompts, which choose together.
inline void check_cluster_choices(const Seam& seam) {
  Cpu cpu;
  constexpr std::int64_t kClustered = 260;
  constexpr std::int64_t kLongUnit = kColumnSliceQueries + 9;
  const Queries q(seam.device, 6 + kLongUnit, 18);
  const Queries cpu_q(cpu.device, 6 + kLongUnit, 18);
  std::vector<AttentionSegment> rows;
  for (const auto& [at, context] :
       {std::pair<std::int64_t, std::int64_t>{1, 300}, {2, 261}, {3, 200}, {0, 1}, {4, 280}}) {
    AttentionSegment& row = rows.emplace_back();
    row.query_begin = at;
    row.query_count = 1;
    row.context_tokens = context;
  }
  const ClusterCounts none;
  for (const std::int64_t kv_heads : {kKvHeads, kHeads}) {
    for (const std::int64_t fine : {40, 150}) {
      const SeamClusters ours(seam.device, kv_heads, kDim, kClustered, fine, 9);
      const SeamClusters theirs(cpu.device, kv_heads, kDim, kClustered, fine, 9);
      for (const bool two_levels : {false, true}) {
        SCOPED_TRACE(std::to_string(kv_heads) + " KV heads, " + std::to_string(fine) + " clusters" +
                     (two_levels ? " of two levels" : ""));
        const DeviceArray<ClusterCounts> counts(seam.device, {none});
        ClusterCounts cpu_counts;
        const Selection chosen =
            seam.sparse.choose_by_clusters(q.view(), kHeads, kv_heads, rows, rows.size(),
                                           ours.view(two_levels), 0.4F, counts.data(), seam.stream);
        const Selection expected =
            cpu.sparse->choose_by_clusters(cpu_q.view(), kHeads, kv_heads, rows, rows.size(),
                                           theirs.view(two_levels), 0.4F, &cpu_counts, *cpu.stream);
        EXPECT_EQ(chosen.capacity, list_capacity(300));
        expect_same_choices(seam, chosen, cpu, expected);
        const ClusterCounts counted = counts.host().front();
        EXPECT_EQ(counted.tokens, cpu_counts.tokens);
        EXPECT_EQ(counted.centroids, cpu_counts.centroids);
        const auto lists = static_cast<std::uint64_t>(kv_heads);
        EXPECT_LT(counted.tokens, lists * (300 + 261 + 200 + 280) * 9 / 10);
        EXPECT_GT(counted.tokens, lists * (40 + 1 + 1 + 1 + 20) * 2);
        // One row at a time, as it was chosen for beside the others.
        const Selection alone = seam.sparse.choose_by_clusters(
            q.view(), kHeads, kv_heads, std::span(rows).subspan(1, 1), 1, ours.view(two_levels),
            0.4F, nullptr, seam.stream);
        expect_same_choices(seam, alone, cpu,
                            cpu.sparse->choose_by_clusters(
                                cpu_q.view(), kHeads, kv_heads, std::span(rows).subspan(1, 1), 1,
                                theirs.view(two_levels), 0.4F, nullptr, *cpu.stream));
        EXPECT_EQ(counts.host().front().tokens, counted.tokens);
        check_prompt_choices(seam, cpu, {q, cpu_q}, rows, kv_heads, ours.view(two_levels),
                             theirs.view(two_levels));
      }
    }
  }
}

}  // namespace triphase::cuda
