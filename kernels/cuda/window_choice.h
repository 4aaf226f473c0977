#pragma once

// The windows of weights (kernels/weight_window.h) of the CUDA SparseOps: SWA's sums, and what is
// chosen by them. See the functions of SparseOps that are named here.

#include "kernels/cuda/sparse_calls.h"

namespace triphase::cuda {

// SparseOps::clear_weights.
void clear_windows(const SparseCall& call, std::span<const WeightWindow> windows);
// SparseOps::add_weights.
void add_to_windows(const SparseCall& call, const Selection& attended, std::int64_t heads,
                    std::span<const WeightRow> rows, std::int64_t layer, bool beside);
// SparseOps::add_prompt_rows.
void add_prompts_to_windows(const SparseCall& call, const ConstMatrix& q, std::int64_t heads,
                            const KvLayerView& cache, std::span<const PromptWindowRows> chunks,
                            ScoreScale scale);
// SparseOps::choose_recent_and_heaviest.
[[nodiscard]] Selection choose_from_windows(const SparseCall& call,
                                            std::span<const WindowChoice> rows,
                                            std::int64_t layers);

}  // namespace triphase::cuda
