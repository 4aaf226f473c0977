#pragma once

// Exact attention of many queries over paged K and V on tensor cores: prefill chunks, causal, with
// an optional window, and the log-sum-exp of every query for prefill_colsum. Flash attention
// (arXiv 2307.08691): a block takes 64 or 128 rows (queries x query heads of a KV head) and streams
// tiles of keys and values through shared memory, the next tile on its way while one is computed.
//
// Products have 16-bit operands and F32 sums. FP16 caches: queries and weights are rounded to FP16.
// BF16 caches: each is split in two BF16 terms (16 significant bits), for twice the arithmetic.
// INT8 caches (prefill_codes.cu): codes are exact, and queries are rounded to FP16 after a block's
// lambda, so that no offset or range of a channel matters.
//
// Where a GPU has warpgroup products, heads of up to 128 channels without lists go by them
// (prefill_warpgroups.cu, and prefill_code_warpgroups.cu for INT8 pages of 64 tokens or more).
//
// A row's bits depend on its own query, its position, the cache and where contexts are split alone:
// tiles lie at absolute positions, a product's row sees no other row, and what a row does not see
// counts with a weight of exactly 0. So with fixed splits neither the batch nor the cut of a prompt
// into chunks matters.

#include <cstdint>

#include "kernels/cuda/paged_attention.h"
#include "kernels/sizing/compute_machine.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {

// The call is paged_attention's. `query_blocks`, its segments' first_block, `splits` and the floats
// of `partials` (not read for one split) are those of kernels/sizing/cuda_workspace.h:
// prefill_query_blocks, prefill_splits or prefill_fixed_splits, prefill_partial_floats. The machine
// gives a block prefill_attention_shared_bytes at least. With listed tokens a context is these,
// then what pages have; splits.tokens may then be 0: the device divides them.
void prefill_attention(const PagedAttention& call, std::int64_t query_blocks,
                       const PrefillSplits& splits, const GpuMachine& machine, StreamHandle stream);

}  // namespace triphase::cuda
