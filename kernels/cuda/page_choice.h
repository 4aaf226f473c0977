#pragma once

// Quest in the CUDA SparseOps: bounds of small pages, and the pages that are chosen by them.

#include "kernels/cuda/sparse_calls.h"

namespace triphase::cuda {

// SparseOps::bound_pages.
void bound_pages(const SparseCall& call, const KvLayerView& cache,
                 std::span<const AttentionSegment> rows, std::span<const PageBounds> bounds,
                 std::int64_t page_tokens, std::int64_t layer);
// SparseOps::choose_by_pages.
[[nodiscard]] Selection choose_pages(const SparseCall& call, const ConstMatrix& q,
                                     std::int64_t heads, std::int64_t kv_heads,
                                     std::span<const AttentionSegment> rows,
                                     std::span<const PageChoice> choices, std::int64_t page_tokens,
                                     std::int64_t layer);

}  // namespace triphase::cuda
