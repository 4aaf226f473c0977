#pragma once

// Activations and additions. Arguments are checked by CpuOps.

#include "base/thread_pool.h"
#include "kernels/ops.h"

namespace triphase::cpu {

// See Ops::gated_activation, Ops::activate, Ops::add.
void gated_activation(ThreadPool& pool, Activation activation, ConstMatrix gate, ConstMatrix up,
                      Matrix y);
void activate(ThreadPool& pool, Activation activation, Matrix y);
void add(ThreadPool& pool, ConstMatrix x, Matrix y);

}  // namespace triphase::cpu
