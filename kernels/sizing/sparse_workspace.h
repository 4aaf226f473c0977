#pragma once

// Scratch of SparseOps as a pure function of shapes. No state; thread safe.

#include <cstdint>

#include "kernels/sizing/attention_workspace.h"

namespace triphase {

// Bytes for score_keys and sum_columns over contexts of at most shape.max_context tokens. Grows
// with every field; max_query_rows and weighted_scores do not matter.
[[nodiscard]] std::uint64_t sparse_workspace_bytes(const AttentionShape& shape);

// Floats of one thread's weights of one query under one KV head, a multiple of 16.
[[nodiscard]] std::int64_t sparse_row_floats(const AttentionShape& shape);

}  // namespace triphase
