#include "kernels/cuda/clusters.h"

#include <algorithm>
#include <utility>

#include "tests/emulated/emulated_test.h"

namespace triphase::cuda {
namespace {

// Rows of two sequences and two KV heads, whose tokens are in clusters of both levels.
struct TwoLevels {
  static constexpr std::int64_t kHeads = 2;
  static constexpr std::int64_t kRows = 2 * kHeads;

  TwoLevels(std::int64_t tokens_, std::int64_t fine_, std::int64_t coarse_, std::uint32_t seed)
      : tokens(tokens_), fine(fine_), coarse(coarse_) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> score(0.0F, 1.0F);
    for (std::int64_t i = 0; i < kRows * fine; ++i) scores.push_back(score(random));
    for (std::int64_t i = 0; i < kRows * coarse; ++i) coarse_scores.push_back(score(random));
    for (std::int64_t i = 0; i < kHeads * fine; ++i) {
      parents.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(coarse)));
    }
    for (std::int64_t i = 0; i < kHeads * tokens; ++i) {
      labels.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(fine)));
    }
    // A score at its threshold is enough.
    coarse_scores[0] = 0.5F;
    parents[0] = 0;
    scores[0] = 0.25F;
    labels[0] = 0;
  }

  [[nodiscard]] std::uint8_t is_alive(std::int64_t row, std::int64_t cluster) const {
    const std::int32_t parent = parents[static_cast<std::size_t>(row % kHeads * fine + cluster)];
    return coarse_scores[static_cast<std::size_t>(row * coarse + parent)] >= 0.5F ? 1 : 0;
  }

  std::int64_t tokens, fine, coarse;
  std::vector<float> scores, coarse_scores;
  std::vector<std::int32_t> parents, labels;
};

TEST(EmulatedClusters, AliveAreThoseWhoseCoarseClusterScoresEnough) {
  for (const auto& [fine, coarse] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {300, 7}, {129, 40}}) {
    const TwoLevels levels(1, fine, coarse, static_cast<std::uint32_t>(fine));
    const ClusterParents given{.coarse_scores = levels.coarse_scores.data(),
                               .coarse = coarse,
                               .parents = levels.parents.data(),
                               .fine = fine,
                               .threshold = 0.5,
                               .kv_heads = TwoLevels::kHeads,
                               .rows = TwoLevels::kRows};
    std::vector<std::uint8_t> alive(static_cast<std::size_t>(TwoLevels::kRows * fine), 7);
    std::vector<std::uint8_t> expected;
    std::uint64_t scored = TwoLevels::kRows * static_cast<std::uint64_t>(coarse);
    for (std::int64_t i = 0; i < TwoLevels::kRows * fine; ++i) {
      expected.push_back(levels.is_alive(i / fine, i % fine));
      scored += expected.back();
    }
    std::vector<ClusterCounts> counts = {{.tokens = 3, .centroids = 5}};
    find_alive_clusters(given, alive.data(), counts.data(), nullptr);
    EXPECT_EQ(alive, expected);
    EXPECT_EQ(counts[0].centroids, 5 + scored);
    EXPECT_EQ(counts[0].tokens, 3U);
    find_alive_clusters(given, alive.data(), nullptr, nullptr);
    EXPECT_EQ(alive, expected);
  }
}

// Contexts that end behind the clustered tokens, among them, and with their first.
TEST(EmulatedClusters, TokensOfChosenClustersAndAllBehindThemAscend) {
  constexpr std::int64_t kCapacity = 9100;
  for (const auto& contexts : {std::vector<std::int32_t>{9000, 9100}, {8201, 8200}, {1, 700}}) {
    for (const bool two : {false, true}) {
      const TwoLevels levels(8200, 90, 11, 8);
      std::vector<std::uint8_t> alive;
      for (std::int64_t i = 0; i < TwoLevels::kRows * 90; ++i) {
        alive.push_back(levels.is_alive(i / 90, i % 90));
      }
      std::vector<std::int32_t> indices(TwoLevels::kRows * kCapacity, -1);
      std::vector<std::int32_t> counts(TwoLevels::kRows, -1);
      std::vector<ClusterCounts> totals(1);
      choose_clusters({.scores = levels.scores.data(),
                       .alive = two ? alive.data() : nullptr,
                       .clusters = 90,
                       .threshold = 0.25,
                       .labels = levels.labels.data(),
                       .tokens = 8200,
                       .contexts = contexts.data(),
                       .kv_heads = TwoLevels::kHeads,
                       .rows = TwoLevels::kRows},
                      indices.data(), kCapacity, counts.data(), totals.data(), nullptr);
      std::uint64_t all = 0;
      for (std::int64_t row = 0; row < TwoLevels::kRows; ++row) {
        const std::int32_t context = contexts[static_cast<std::size_t>(row / 2)];
        std::vector<std::int32_t> expected;
        for (std::int32_t t = 0; t < context; ++t) {
          bool chosen = t >= std::min(8200, context - 1);
          if (!chosen) {
            const auto at = static_cast<std::size_t>(
                row * 90 + levels.labels[static_cast<std::size_t>(row % 2 * 8200 + t)]);
            chosen = levels.scores[at] >= 0.25F && (!two || alive[at] != 0);
          }
          if (chosen) expected.push_back(t);
        }
        const auto begin = indices.begin() + row * kCapacity;
        const std::int32_t count = counts[static_cast<std::size_t>(row)];
        ASSERT_EQ(std::vector<std::int32_t>(begin, begin + count), expected) << "row " << row;
        all += expected.size();
        ASSERT_LT(count, kCapacity);
        ASSERT_EQ(begin[count], -1);
      }
      EXPECT_EQ(totals[0].tokens, all);
      EXPECT_EQ(totals[0].centroids, two ? 0U : TwoLevels::kRows * 90U);
    }
  }
}

TEST(EmulatedClusters, PagesBecomeTokensCutAtTheRowsLength) {
  const std::vector<std::int32_t> chosen = {0, 2, 4, 1, 3, -1, -1, -1, -1};
  const std::vector<std::int32_t> counts = {3, 2, 0};
  const std::vector<std::int32_t> lengths = {66, 64, 5};
  std::vector<std::int32_t> indices(3 * 48, -1);
  std::vector<std::int32_t> token_counts(3, -1);
  expand_pages(chosen.data(), 3, counts.data(), 3, 16, lengths.data(), 1, indices.data(), 48,
               token_counts.data(), nullptr);
  EXPECT_THAT(token_counts, testing::ElementsAre(34, 32, 0));
  for (std::size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(indices[i], static_cast<std::int32_t>(i));
    EXPECT_EQ(indices[16 + i], static_cast<std::int32_t>(32 + i));
    EXPECT_EQ(indices[48 + i], static_cast<std::int32_t>(16 + i));
  }
  EXPECT_EQ(indices[32], 64);
  EXPECT_EQ(indices[33], 65);
  EXPECT_EQ(indices[34], -1);
}

}  // namespace
}  // namespace triphase::cuda
