#pragma once

// Scores of groups of tokens: Quest's pages and Squeezed Attention's centroids. Arguments are
// checked by CpuSparseOps.

#include "base/thread_pool.h"
#include "kernels/sparse_ops.h"

namespace triphase::cpu {

// See the functions of the same names in SparseOps.
void bound_pages(ThreadPool& pool, const KvLayerView& cache, const AttentionSegment& keys,
                 std::int64_t first_token, const PageBounds& bounds);
void score_pages(ThreadPool& pool, ConstMatrix q, std::int64_t row, std::int64_t heads,
                 std::int64_t kv_heads, const PageBounds& bounds, std::int64_t pages, float* scores,
                 std::int64_t stride);
void score_centroids(ThreadPool& pool, ConstMatrix q, std::int64_t row, std::int64_t heads,
                     std::int64_t kv_heads, const Centroids& centroids, float scale, float* scores);

}  // namespace triphase::cpu
