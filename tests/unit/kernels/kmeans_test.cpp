#include "kernels/kmeans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

namespace triphase {
namespace {

struct Points {
  std::vector<float> values;
  std::int64_t dim = 0;

  [[nodiscard]] std::int64_t count() const {
    return static_cast<std::int64_t>(values.size()) / dim;
  }
  [[nodiscard]] const float* at(std::int64_t i) const { return values.data() + i * dim; }
};

// `blobs` clouds of unequal width around random places.
Points clouds(std::int64_t count, std::int64_t dim, int blobs, double apart, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> places(static_cast<std::size_t>(blobs * dim));
  for (double& place : places) place = apart * normal(random);
  Points points{{}, dim};
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t blob = i % blobs;
    for (std::int64_t c = 0; c < dim; ++c) {
      const double width = 0.5 + 0.1 * static_cast<double>(blob);
      points.values.push_back(static_cast<float>(places[static_cast<std::size_t>(blob * dim + c)] +
                                                 width * normal(random)));
    }
  }
  return points;
}

KmeansResult cluster(const Points& points, std::int64_t clusters, std::uint64_t seed = 1,
                     int threads = 2, std::int64_t iterations = 300) {
  ThreadPool pool(threads);
  return kmeans(pool, points.values, points.dim,
                {.clusters = clusters, .max_iterations = iterations, .seed = seed});
}

// Means of the labels, and each point's squared distance to the nearest mean, in float64.
struct Oracle {
  std::vector<double> means;
  std::vector<double> members;

  Oracle(const Points& points, const std::vector<std::int32_t>& labels, std::int64_t clusters)
      : means(static_cast<std::size_t>(clusters * points.dim)),
        members(static_cast<std::size_t>(clusters)) {
    for (std::int64_t i = 0; i < points.count(); ++i) {
      const auto label = static_cast<std::size_t>(labels[static_cast<std::size_t>(i)]);
      members[label] += 1.0;
      for (std::int64_t c = 0; c < points.dim; ++c) {
        means[label * static_cast<std::size_t>(points.dim) + static_cast<std::size_t>(c)] +=
            points.at(i)[c];
      }
    }
    for (std::size_t at = 0; at < means.size(); ++at) {
      const double count = members[at / static_cast<std::size_t>(points.dim)];
      if (count > 0) means[at] /= count;
    }
  }
  [[nodiscard]] double distance(const Points& points, std::int64_t i, std::size_t cluster) const {
    double sum = 0.0;
    for (std::int64_t c = 0; c < points.dim; ++c) {
      const double apart =
          points.at(i)[c] -
          means[cluster * static_cast<std::size_t>(points.dim) + static_cast<std::size_t>(c)];
      sum += apart * apart;
    }
    return sum;
  }
};

TEST(Kmeans, EndsWhereNoPointIsNearerToAnotherMean) {
  for (const std::int64_t dim : {3, 16, 61}) {
    const Points points = clouds(2300, dim, 9, 1.0, 5);
    const KmeansResult result = cluster(points, 40);
    ASSERT_LT(result.iterations, 300) << "it converged";
    ASSERT_EQ(result.labels.size(), 2300U);
    const Oracle oracle(points, result.labels, 40);
    for (std::int64_t i = 0; i < points.count(); ++i) {
      const auto label = static_cast<std::size_t>(result.labels[static_cast<std::size_t>(i)]);
      const double own = oracle.distance(points, i, label);
      for (std::size_t k = 0; k < 40; ++k) {
        if (oracle.members[k] == 0.0) continue;
        ASSERT_LE(own, oracle.distance(points, i, k) + 1e-4) << "point " << i << " cluster " << k;
      }
    }
  }
}

TEST(Kmeans, FindsCloudsThatLieApart) {
  const Points points = clouds(600, 8, 6, 40.0, 2);
  const KmeansResult result = cluster(points, 6);
  std::set<std::int32_t> seen;
  for (std::int64_t i = 0; i < points.count(); ++i) {
    ASSERT_EQ(result.labels[static_cast<std::size_t>(i)],
              result.labels[static_cast<std::size_t>(i % 6)]);
    seen.insert(result.labels[static_cast<std::size_t>(i)]);
  }
  EXPECT_EQ(seen.size(), 6U);
}

TEST(Kmeans, DependsOnTheSeedAndNotOnThreads) {
  const Points points = clouds(3000, 24, 12, 0.5, 3);
  const KmeansResult one = cluster(points, 50, 7, 1);
  const KmeansResult three = cluster(points, 50, 7, 3);
  EXPECT_EQ(one.labels, three.labels);
  EXPECT_EQ(one.iterations, three.iterations);
  EXPECT_NE(one.labels, cluster(points, 50, 8, 1).labels);
}

TEST(Kmeans, DuplicatesShareAClusterAndLeaveOthersEmpty) {
  Points points{{}, 5};
  for (int i = 0; i < 30; ++i) {
    for (int c = 0; c < 5; ++c) {
      points.values.push_back(0.1F * static_cast<float>(c) + static_cast<float>(i % 3));
    }
  }
  const KmeansResult result = cluster(points, 8);
  std::set<std::int32_t> seen(result.labels.begin(), result.labels.end());
  EXPECT_EQ(seen.size(), 3U);
  for (std::size_t i = 3; i < 30; ++i) EXPECT_EQ(result.labels[i], result.labels[i % 3]);
  const Points zeros{std::vector<float>(40), 4};
  for (const std::int32_t label : cluster(zeros, 3).labels) EXPECT_EQ(label, 0);
}

TEST(Kmeans, FewerPointsThanClusters) {
  const Points points = clouds(4, 6, 4, 10.0, 1);
  const KmeansResult result = cluster(points, 100);
  std::vector<std::int32_t> labels = result.labels;
  std::ranges::sort(labels);
  EXPECT_EQ(labels, (std::vector<std::int32_t>{0, 1, 2, 3}));
  const Points single = clouds(1, 6, 1, 1.0, 1);
  EXPECT_EQ(cluster(single, 1).labels, (std::vector<std::int32_t>{0}));
}

TEST(Kmeans, StopsAtTheIterationsGiven) {
  const Points points = clouds(2000, 16, 20, 0.3, 4);
  EXPECT_EQ(cluster(points, 30, 1, 2, 2).iterations, 2);
  EXPECT_EQ(cluster(points, 30, 1, 2, 1).iterations, 1);
  EXPECT_GT(cluster(points, 30, 1, 2, 300).iterations, 2);
}

}  // namespace
}  // namespace triphase
