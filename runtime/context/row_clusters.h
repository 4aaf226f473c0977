#pragma once

// Clusters of one row's keys: of one layer and KV head of a fixed context (Squeezed Attention,
// section 4.1 and appendix on the hierarchical lookup). Pure but for the threads it uses.

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "runtime/context/fixed_context.h"

namespace triphase {

// How many clusters so many tokens get: a share, at least 1.
[[nodiscard]] std::int64_t cluster_count(double share, std::int64_t tokens);

struct RowLevel {
  std::vector<float> means;  // [cluster][dim]; zero where a cluster has no keys
  std::vector<float> keys;   // [cluster]: keys in it
};

struct RowClusters {
  RowLevel fine;
  std::vector<std::int32_t> labels;  // [token]: fine cluster
  RowLevel coarse;                   // two levels only
  std::vector<std::int32_t>
      parents;                  // [fine cluster]: coarse cluster; 0 for a cluster without keys
  std::int64_t iterations = 0;  // of both K-means
};

// `keys` [token][dim], as attention scores them (after RoPE). K-means works on their directions;
// a fine mean is that of its keys as they are, a coarse mean the unweighted mean of its fine means.
// `row` makes the seeds of rows differ.
[[nodiscard]] RowClusters cluster_row(ThreadPool& pool, std::span<const float> keys,
                                      std::int64_t dim, const ClusterOptions& options,
                                      std::uint64_t row);

}  // namespace triphase
