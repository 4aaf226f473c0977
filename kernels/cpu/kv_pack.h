#pragma once

// Copies between the KV cache and host records. Arguments are checked by CpuOps.

#include <cstddef>
#include <span>

#include "base/thread_pool.h"
#include "kernels/ops.h"

namespace triphase::cpu {

// See Ops::kv_pack and Ops::kv_unpack.
void kv_pack(ThreadPool& pool, const KvLayerView& cache, std::span<const std::int32_t> slots,
             std::byte* records);
void kv_unpack(ThreadPool& pool, const std::byte* records, std::span<const std::int32_t> slots,
               const KvLayerView& cache);

}  // namespace triphase::cpu
