#pragma once

// Matrices in 4-bit groups read back. Arguments are checked by CpuOps.

#include "kernels/ops.h"
#include "runtime/base/thread_pool.h"

namespace triphase::cpu {

// See Ops::widen_groups.
void widen_groups(ThreadPool& pool, const GroupMatrix& w, Matrix y);

}  // namespace triphase::cpu
