#pragma once

// Quantizing full blocks of the KV cache to INT8. Arguments are checked by CpuOps.

#include <span>

#include "kernels/ops.h"
#include "runtime/base/thread_pool.h"

namespace triphase::cpu {

// See Ops::kv_close and KvLayerView: codes and scales are bit-identical on every SIMD target.
void kv_close(ThreadPool& pool, std::span<const KvClose> blocks, const KvLayerView& cache);

}  // namespace triphase::cpu
