#pragma once

// K-means over points in host memory: k-means++ seeds, then Lloyd's iterations until no label
// changes (Arthur and Vassilvitskii 2007; Lloyd 1982). The result depends on the points, the
// options and the SIMD target alone, not on the number of threads: distances are compared per point
// with ties to the smallest cluster, sums run in the order of the points.

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"

namespace triphase {

struct KmeansOptions {
  std::int64_t clusters = 1;
  std::int64_t max_iterations = 300;
  std::uint64_t seed = 0;
};

struct KmeansResult {
  std::vector<std::int32_t> labels;  // [point]: its cluster, below options.clusters
  std::int64_t iterations = 0;       // assignments made; fewer than asked for: converged
};

// points [count][dim], F32, finite. Clusters beyond the number of different points stay empty; so
// may others.
[[nodiscard]] KmeansResult kmeans(ThreadPool& pool, std::span<const float> points, std::int64_t dim,
                                  const KmeansOptions& options);

}  // namespace triphase
