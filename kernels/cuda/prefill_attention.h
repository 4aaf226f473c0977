#pragma once

// Exact attention of many queries over paged K and V on tensor cores: prefill chunks, causal, with
// an optional window, and the log-sum-exp of every query for prefill_colsum. Flash attention
// (arXiv 2307.08691): a block takes 64 rows (queries x query heads of a KV head) and streams tiles
// of keys and values through shared memory, the next tile on its way while one is computed.
//
// Products have 16-bit operands and F32 sums. FP16 caches: queries and weights are rounded to FP16.
// BF16 caches: each is split in two BF16 terms (16 significant bits), for twice the arithmetic.
// INT8 caches: codes are dequantized to FP16 while a tile is loaded, the open block converted.
//
// A row's bits depend on its own query, its position, the cache and the number of splits alone.

#include <cstdint>

#include "kernels/cuda/paged_attention.h"

namespace triphase::cuda {

// Whether the kernel takes these: an F16, BF16 or U8 cache, head_dim a multiple of 8 up to 256,
// page_tokens a power of two from 16 on, at most 64 query heads per KV head.
[[nodiscard]] bool prefill_attention_serves(const PagedAttention& call);

// Shared memory of a block; a GPU may offer less (sm_75, sm_86 and sm_89 for wide heads).
[[nodiscard]] std::int64_t prefill_attention_shared_bytes(DType dtype, std::int64_t head_dim);

// The call is paged_attention's. `query_blocks`, its segments' first_block, `splits` and the floats
// of `partials` (not read for one split) are those of kernels/sizing/cuda_workspace.h:
// prefill_query_blocks, prefill_splits, prefill_partial_floats.
void prefill_attention(const PagedAttention& call, std::int64_t query_blocks,
                       std::int64_t max_context, std::int64_t splits, StreamHandle stream);

}  // namespace triphase::cuda
