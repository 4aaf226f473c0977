#pragma once

// Matrix product of the CPU backend. Arguments are checked by CpuOps.

#include "base/thread_pool.h"
#include "kernels/ops.h"

namespace triphase::cpu {

// See Ops::linear.
void linear(ThreadPool& pool, ConstMatrix x, ConstMatrix w, const float* bias, bool accumulate,
            Matrix y);

}  // namespace triphase::cpu
