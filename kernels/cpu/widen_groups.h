#pragma once

// Matrices in 4-bit groups read back. Arguments are checked by CpuOps.

#include "base/thread_pool.h"
#include "kernels/ops.h"

namespace triphase::cpu {

// See Ops::widen_groups.
void widen_groups(ThreadPool& pool, const GroupMatrix& w, Matrix y);

}  // namespace triphase::cpu
