#pragma once

// Softmax weights of all tokens, for selection and for statistics. Arguments are checked by
// CpuSparseOps.

#include "base/thread_pool.h"
#include "kernels/sizing/attention_workspace.h"
#include "kernels/sparse_ops.h"

namespace triphase::cpu {

// See SparseOps::score_keys and SparseOps::sum_columns; shape.max_context is the segment's context.
void score_keys(ThreadPool& pool, ConstMatrix q, std::int64_t row, std::int64_t heads,
                const KvLayerView& cache, const AttentionSegment& keys, float scale,
                float* probabilities, std::int64_t stride, const AttentionShape& shape,
                Workspace workspace);
void sum_columns(ThreadPool& pool, ConstMatrix q, std::int64_t heads, const KvLayerView& cache,
                 const AttentionSegment& segment, std::int64_t first_query, float scale,
                 float* sums, std::int64_t stride, const AttentionShape& shape,
                 Workspace workspace);

}  // namespace triphase::cpu
