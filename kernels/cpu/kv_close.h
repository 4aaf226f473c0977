#pragma once

// Quantizing full blocks of the KV cache to INT8, and single tokens of them again. Arguments are
// checked by CpuOps and CpuInputOps.

#include <span>

#include "base/thread_pool.h"
#include "kernels/input_ops.h"
#include "kernels/ops.h"

namespace triphase::cpu {

// See Ops::kv_close and KvLayerView: codes and scales are bit-identical on every SIMD target.
void kv_close(ThreadPool& pool, std::span<const KvClose> blocks, const KvLayerView& cache);

// See InputOps::kv_requantize: the codes that kv_close gave the same numbers.
void kv_requantize(ThreadPool& pool, std::span<const KvRequantize> tokens,
                   const KvLayerView& cache);

}  // namespace triphase::cpu
