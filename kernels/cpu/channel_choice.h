#pragma once

// SparQ's choice of tokens from a few channels of the keys. Arguments are checked by CpuSparseOps.

#include "base/thread_pool.h"
#include "kernels/sizing/sparse_workspace.h"
#include "kernels/sparse_ops.h"

namespace triphase::cpu {

// See SparseOps::choose_by_channels; shape.max_context is the segment's context.
void choose_by_channels(ThreadPool& pool, ConstMatrix q, std::int64_t row, std::int64_t heads,
                        const KvLayerView& cache, const AttentionSegment& keys, float scale,
                        const ChannelChoice& choice, std::int32_t* tokens, float* alpha,
                        const AttentionShape& shape, Workspace workspace);

}  // namespace triphase::cpu
