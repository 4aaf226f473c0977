#pragma once

// Squeezed Attention in the CUDA SparseOps: the tokens of clusters that score enough.

#include "kernels/cuda/sparse_calls.h"

namespace triphase::cuda {

// SparseOps::choose_by_clusters.
[[nodiscard]] Selection choose_by_clusters(const SparseCall& call, const ConstMatrix& q,
                                           std::int64_t heads, std::int64_t kv_heads,
                                           std::span<const AttentionSegment> rows,
                                           std::size_t decoded, const KeyClusters& clusters,
                                           float scale, ClusterCounts* counts);

}  // namespace triphase::cuda
