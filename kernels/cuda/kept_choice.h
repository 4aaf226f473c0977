#pragma once

// The kept tokens (kernels/kept_tokens.h) of the CUDA SparseOps: H2O's lists, and what is chosen
// from them. See the functions of SparseOps that are named here.

#include "kernels/cuda/sparse_calls.h"

namespace triphase::cuda {

// SparseOps::keep_all.
void keep_every_token(const SparseCall& call, std::span<const KeptTokens> kept,
                      std::int64_t tokens);
// SparseOps::keep_heaviest.
[[nodiscard]] Selection choose_from_kept(const SparseCall& call, std::span<const KeptRow> rows,
                                         std::int64_t layers);
// SparseOps::add_kept_weights.
void add_to_kept(const SparseCall& call, const Selection& attended, std::int64_t heads,
                 std::span<const KeptWeights> rows, std::int64_t layer, bool beside);

}  // namespace triphase::cuda
