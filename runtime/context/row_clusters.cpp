#include "runtime/context/row_clusters.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/kmeans.h"
#include "scheduler/attention/attention_options.h"

namespace triphase {
namespace {

// Divides every vector by its length; a zero vector stays.
std::vector<float> directions(std::span<const float> vectors, std::int64_t dim) {
  std::vector<float> result(vectors.begin(), vectors.end());
  const auto step = static_cast<std::size_t>(dim);
  for (std::size_t begin = 0; begin < result.size(); begin += step) {
    const std::span<float> vector(result.data() + begin, step);
    double square = 0.0;
    for (const float value : vector) square += static_cast<double>(value) * value;
    if (square == 0.0) continue;
    const double inverse = 1.0 / std::sqrt(square);
    for (float& value : vector) value = static_cast<float>(value * inverse);
  }
  return result;
}

// Means of the vectors that share a label, and how many there are.
RowLevel means_of(std::span<const float> vectors, std::int64_t dim,
                  const std::vector<std::int32_t>& labels, std::int64_t clusters) {
  std::vector<double> sums(static_cast<std::size_t>(clusters * dim));
  RowLevel level;
  level.keys.resize(static_cast<std::size_t>(clusters));
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const auto label = static_cast<std::int64_t>(labels[i]);
    level.keys[label] += 1.0F;
    const float* from = vectors.data() + static_cast<std::int64_t>(i) * dim;
    double* to = sums.data() + label * dim;
    for (std::int64_t c = 0; c < dim; ++c) to[c] += from[c];
  }
  level.means.resize(sums.size());
  for (std::size_t at = 0; at < sums.size(); ++at) {
    const auto members = static_cast<double>(level.keys[at / static_cast<std::size_t>(dim)]);
    level.means[at] = members == 0.0 ? 0.0F : static_cast<float>(sums[at] / members);
  }
  return level;
}

// The means of the fine clusters are clustered again, without clusters that have no keys.
void add_coarse_level(ThreadPool& pool, std::int64_t dim, std::int64_t clusters,
                      const KmeansOptions& options, RowClusters& row) {
  const auto fine_count = std::ssize(row.fine.keys);
  std::vector<float> filled;
  std::vector<std::int64_t> places;
  for (std::int64_t i = 0; i < fine_count; ++i) {
    if (row.fine.keys[i] == 0.0F) continue;
    const float* mean = row.fine.means.data() + i * dim;
    filled.insert(filled.end(), mean, mean + dim);
    places.push_back(i);
  }
  const KmeansResult grouped = kmeans(pool, directions(filled, dim), dim, options);
  row.iterations += grouped.iterations;
  row.coarse = means_of(filled, dim, grouped.labels, clusters);
  row.parents.assign(static_cast<std::size_t>(fine_count), 0);
  std::fill(row.coarse.keys.begin(), row.coarse.keys.end(), 0.0F);
  for (std::size_t i = 0; i < places.size(); ++i) {
    row.parents[places[i]] = grouped.labels[i];
    row.coarse.keys[grouped.labels[i]] += row.fine.keys[places[i]];
  }
}

}  // namespace

std::int64_t cluster_count(double share, std::int64_t tokens) {
  return std::max<std::int64_t>(1, share_of_tokens(share, tokens));
}

RowClusters cluster_row(ThreadPool& pool, std::span<const float> keys, std::int64_t dim,
                        const ClusterOptions& options, std::uint64_t row) {
  TRIPHASE_CHECK(dim > 0 && !keys.empty() && keys.size() % static_cast<std::size_t>(dim) == 0,
                 "keys of a row");
  const auto tokens = std::ssize(keys) / dim;
  const std::int64_t clusters = cluster_count(options.centroids, tokens);
  KmeansOptions kmeans_options{.clusters = clusters,
                               .max_iterations = options.max_iterations,
                               .seed = options.seed + 2 * row};
  RowClusters result;
  KmeansResult grouped = kmeans(pool, directions(keys, dim), dim, kmeans_options);
  result.iterations = grouped.iterations;
  result.labels = std::move(grouped.labels);
  result.fine = means_of(keys, dim, result.labels, clusters);
  if (options.levels == 2) {
    const std::int64_t coarse = std::min(clusters, cluster_count(options.coarse_centroids, tokens));
    kmeans_options.clusters = coarse;
    kmeans_options.seed += 1;
    add_coarse_level(pool, dim, coarse, kmeans_options, result);
  }
  return result;
}

std::uint64_t cluster_bytes(const ContextClusters& clusters) {
  const auto level = [](const ContextClusters::Level& one) {
    return (one.means.size() + one.keys.size()) * sizeof(float);
  };
  return level(clusters.fine) + level(clusters.coarse) +
         (clusters.labels.size() + clusters.parents.size()) * sizeof(std::int32_t);
}

}  // namespace triphase
