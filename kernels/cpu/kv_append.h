#pragma once

// Writing new tokens into the KV cache. Arguments are checked by CpuOps.

#include "base/thread_pool.h"
#include "kernels/ops.h"

namespace triphase::cpu {

// See Ops::kv_append.
void kv_append(ThreadPool& pool, ConstMatrix k, ConstMatrix v, const KvSlots& slots,
               const KvLayerView& cache);

}  // namespace triphase::cpu
