#pragma once

// Row normalisations. Arguments are checked by CpuOps.

#include "base/thread_pool.h"
#include "kernels/ops.h"

namespace triphase::cpu {

// See Ops::rms_norm.
void rms_norm(ThreadPool& pool, ConstMatrix x, const float* weight, float weight_offset, float eps,
              Matrix y);

// See Ops::layer_norm.
void layer_norm(ThreadPool& pool, ConstMatrix x, const float* weight, const float* bias, float eps,
                Matrix y);

}  // namespace triphase::cpu
