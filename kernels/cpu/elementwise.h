#pragma once

// Activations. Arguments are checked by CpuOps.

#include "base/thread_pool.h"
#include "kernels/ops.h"

namespace triphase::cpu {

// See Ops::gated_activation, Ops::activate.
void gated_activation(ThreadPool& pool, Activation activation, ConstMatrix gate, ConstMatrix up,
                      Matrix y);
void activate(ThreadPool& pool, Activation activation, Matrix y);

}  // namespace triphase::cpu
