#include "kernels/cuda/clusters.h"

#include <algorithm>
#include <set>

#include "tests/emulated/emulated_test.h"

namespace triphase::cuda {
namespace {

TEST(EmulatedClusters, NormalizedPointsHaveLengthOneAndZeroStaysZero) {
  std::mt19937 random(1);
  std::vector<float> values = random_floats(random, 2 * 9 * 37);
  std::fill(values.begin() + 37, values.begin() + 74, 0.0F);
  std::vector<float> normalized = poisoned(2 * 9 * 37);
  normalize_points({values.data(), 2, 9, 37}, normalized.data(), nullptr);
  for (std::size_t point = 0; point < 18; ++point) {
    double squares = 0.0;
    for (std::size_t c = 0; c < 37; ++c)
      squares += std::pow(static_cast<double>(normalized[point * 37 + c]), 2);
    EXPECT_NEAR(squares, point == 1 ? 0.0 : 1.0, 1e-6);
  }
}

TEST(EmulatedClusters, AssignmentIsTheNearestCentroidTiesToTheSmallest) {
  std::mt19937 random(2);
  for (const auto& [count, clusters, dim] :
       {std::tuple<std::int64_t, std::int64_t, std::int64_t>{33, 70, 20},
        {1, 1, 4},
        {40, 32, 130},
        {2, 3, 191}}) {  // beyond 48 KiB of shared memory with the fixed arrays alone
    const std::vector<float> values = random_floats(random, 2 * count * dim);
    std::vector<float> centroids = random_floats(random, 2 * clusters * dim);
    // The last centroid repeats the first: the first must win.
    std::copy_n(centroids.begin(), dim, centroids.begin() + (clusters - 1) * dim);
    std::vector<std::int32_t> labels(static_cast<std::size_t>(2 * count), -1);
    kmeans_assign({values.data(), 2, count, dim}, centroids.data(), clusters, labels.data(),
                  nullptr);
    for (std::int64_t row = 0; row < 2; ++row) {
      for (std::int64_t i = 0; i < count; ++i) {
        std::vector<double> distances;
        for (std::int64_t k = 0; k < clusters; ++k) {
          double distance = 0.0;
          for (std::int64_t c = 0; c < dim; ++c) {
            distance += std::pow(
                static_cast<double>(values[static_cast<std::size_t>((row * count + i) * dim + c)]) -
                    static_cast<double>(
                        centroids[static_cast<std::size_t>((row * clusters + k) * dim + c)]),
                2);
          }
          distances.push_back(distance);
        }
        const auto label =
            static_cast<std::size_t>(labels[static_cast<std::size_t>(row * count + i)]);
        ASSERT_LT(label, distances.size());
        ASSERT_NEAR(distances[label], *std::ranges::min_element(distances), 1e-4);
        if (row == 0 && clusters > 1) {
          ASSERT_NE(label, distances.size() - 1) << "the repeated centroid won";
        }
      }
    }
  }
}

TEST(EmulatedClusters, CentroidsAreMeansAndEmptyClustersZero) {
  std::mt19937 random(3);
  const emulated::Order order(5);
  const std::int64_t count = 300;
  const std::vector<float> values = random_floats(random, 2 * count * 140);
  std::vector<std::int32_t> labels(static_cast<std::size_t>(2 * count));
  for (auto& label : labels)
    label = static_cast<std::int32_t>(random() % 3) * 2;  // 1 and 3 stay empty
  std::vector<float> centroids = poisoned(2 * 5 * 140);
  std::vector<std::int32_t> members(10, -1);
  kmeans_update({values.data(), 2, count, 140}, labels.data(), 5, centroids.data(), members.data(),
                nullptr);
  for (std::int64_t row = 0; row < 2; ++row) {
    for (std::int32_t k = 0; k < 5; ++k) {
      std::vector<double> sum(140, 0.0);
      std::int32_t n = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        if (labels[static_cast<std::size_t>(row * count + i)] != k) continue;
        ++n;
        for (std::size_t c = 0; c < 140; ++c)
          sum[c] += values[static_cast<std::size_t>((row * count + i) * 140) + c];
      }
      EXPECT_EQ(members[static_cast<std::size_t>(row * 5 + k)], n);
      for (std::size_t c = 0; c < 140; ++c) {
        ASSERT_NEAR(centroids[static_cast<std::size_t>((row * 5 + k) * 140) + c],
                    n > 0 ? sum[c] / n : 0.0, 1e-5);
      }
    }
  }
}

TEST(EmulatedClusters, ExpansionIsAscendingAndComplete) {
  std::mt19937 random(4);
  for (const std::uint64_t seed : {0, 1, 6}) {
    const emulated::Order order(seed);
    const std::int64_t tokens = 1000;
    const std::int64_t most = 9;
    std::vector<std::int32_t> begins(static_cast<std::size_t>(3 * (most + 1)));
    std::vector<std::int32_t> lists(static_cast<std::size_t>(3 * tokens), -1);
    std::vector<std::int32_t> chosen(static_cast<std::size_t>(3 * most), -1);
    std::vector<std::int32_t> chosen_counts = {0, 4, 9};
    std::vector<std::vector<std::int32_t>> expected(3);
    for (std::size_t row = 0; row < 3; ++row) {
      std::vector<std::vector<std::int32_t>> members(most);
      for (std::int32_t t = 0; t < tokens - 7; ++t)
        members[random() % (most - 1)].push_back(t);  // the last is empty
      std::int32_t at = 0;
      for (std::size_t k = 0; k < most; ++k) {
        begins[row * (most + 1) + k] = at;
        for (const std::int32_t t : members[k])
          lists[row * tokens + static_cast<std::size_t>(at++)] = t;
      }
      begins[row * (most + 1) + most] = at;
      std::set<std::int32_t> all;
      for (std::int32_t i = 0; i < chosen_counts[row]; ++i) {
        const auto k = static_cast<std::size_t>(chosen_counts[row] == 9 ? i : 2 * i + 1);
        chosen[row * most + static_cast<std::size_t>(i)] = static_cast<std::int32_t>(k);
        all.insert(members[k].begin(), members[k].end());
      }
      expected[row].assign(all.begin(), all.end());
    }
    std::vector<std::int32_t> indices(static_cast<std::size_t>(3 * tokens), -1);
    std::vector<std::int32_t> counts(3, -1);
    expand_clusters({begins.data(), lists.data(), 3, most, tokens}, chosen.data(), most,
                    chosen_counts.data(), indices.data(), counts.data(), nullptr);
    for (std::size_t row = 0; row < 3; ++row) {
      const auto begin = indices.begin() + static_cast<std::ptrdiff_t>(row * tokens);
      ASSERT_EQ(std::vector<std::int32_t>(begin, begin + counts[row]), expected[row])
          << "row " << row;
    }
  }
}

// The bits of as many tokens take less than 48 KiB of shared memory, with the fixed arrays more.
TEST(EmulatedClusters, ExpansionOfALongContext) {
  const std::int64_t tokens = 393'200;
  const std::vector<std::int32_t> begins = {0, 2};
  std::vector<std::int32_t> lists(static_cast<std::size_t>(tokens), -1);
  lists[0] = 393'199;
  lists[1] = 7;
  const std::vector<std::int32_t> chosen = {0};
  const std::vector<std::int32_t> chosen_counts = {1};
  std::vector<std::int32_t> indices(static_cast<std::size_t>(tokens), -1);
  std::vector<std::int32_t> counts(1, -1);
  expand_clusters({begins.data(), lists.data(), 1, 1, tokens}, chosen.data(), 1,
                  chosen_counts.data(), indices.data(), counts.data(), nullptr);
  EXPECT_EQ(counts[0], 2);
  EXPECT_EQ(indices[0], 7);
  EXPECT_EQ(indices[1], 393'199);
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
