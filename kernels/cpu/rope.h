#pragma once

// Rotary position embedding. Arguments are checked by CpuOps.

#include "base/thread_pool.h"
#include "kernels/ops.h"

namespace triphase::cpu {

// See Ops::rope.
void rope(ThreadPool& pool, Matrix x, std::int64_t heads, std::int64_t head_dim,
          std::int64_t rotary_dim, ConstMatrix cos_sin);

}  // namespace triphase::cpu
