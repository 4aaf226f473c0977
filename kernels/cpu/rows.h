#pragma once

// Operations that pick rows of a table. Arguments and indices are checked by CpuOps.

#include "base/thread_pool.h"
#include "kernels/ops.h"

namespace triphase::cpu {

// See Ops::embed, Ops::add_positions, Ops::gather_rows.
void embed(ThreadPool& pool, std::span<const TokenId> ids, ConstMatrix table, float scale,
           Matrix y);
void add_positions(ThreadPool& pool, std::span<const std::int32_t> positions, ConstMatrix table,
                   Matrix y);
void gather_rows(ThreadPool& pool, ConstMatrix x, std::span<const std::int32_t> rows, Matrix y);

}  // namespace triphase::cpu
