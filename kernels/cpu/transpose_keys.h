#pragma once

// The second, channel-major layout of keys. Arguments are checked by CpuSparseOps.

#include "base/thread_pool.h"
#include "kernels/ops.h"

namespace triphase::cpu {

// See SparseOps::transpose_keys.
void transpose_keys(ThreadPool& pool, const KvLayerView& cache, const AttentionSegment& keys);

}  // namespace triphase::cpu
