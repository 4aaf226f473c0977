#pragma once

// Device workspace of the CUDA kernels as pure functions of shapes: the planner budgets with them
// and the kernels lay their scratch out by them. Every region starts at a multiple of 256 bytes.

#include <cstdint>

namespace triphase {

inline constexpr std::int64_t kCudaRegionAlignment = 256;

[[nodiscard]] constexpr std::int64_t cuda_region_bytes(std::int64_t bytes) {
  return (bytes + kCudaRegionAlignment - 1) / kCudaRegionAlignment * kCudaRegionAlignment;
}

// plan_splits: parts, parts of each row, prefix sums over rows.
struct SplitPlanLayout {
  std::int64_t parts_at = 0;
  std::int64_t row_parts_at = 0;
  std::int64_t prefix_at = 0;
  std::int64_t bytes = 0;
};
[[nodiscard]] SplitPlanLayout split_plan_layout(std::int64_t rows, std::int64_t part_count);
[[nodiscard]] inline std::int64_t split_plan_bytes(std::int64_t rows, std::int64_t part_count) {
  return split_plan_layout(rows, part_count).bytes;
}

// gather_attn: warps that a GPU runs at once, the number of parts a balanced plan should have.
// `group` is query heads per KV head.
[[nodiscard]] std::int64_t gather_attn_parts(std::int64_t multiprocessors,
                                             std::int64_t shared_bytes_per_multiprocessor,
                                             std::int64_t group);

// gather_attn's partial results: outputs [result][group][head_dim] and (max, sum) pairs
// [result][group], F32. One result per part and row, and with an INT8 cache one more per row.
struct GatherStatesLayout {
  std::int64_t results = 0;
  std::int64_t states_at = 0;
  std::int64_t max_sum_at = 0;
  std::int64_t bytes = 0;
};
[[nodiscard]] GatherStatesLayout gather_states_layout(std::int64_t rows, std::int64_t part_count,
                                                      std::int64_t group, std::int64_t head_dim,
                                                      bool quantized);

// prefill_attention: blocks of kPrefillRows rows (queries x query heads of a KV head). Contexts are
// split only when there are too few blocks for the multiprocessors, so that partial results never
// grow with the context.
inline constexpr std::int64_t kPrefillRows = 64;
[[nodiscard]] std::int64_t prefill_query_blocks(std::int64_t query_count, std::int64_t group);
[[nodiscard]] std::int64_t prefill_splits(std::int64_t query_blocks, std::int64_t kv_heads,
                                          std::int64_t max_context, std::int64_t multiprocessors);
// Tokens of a split: whole pages of 128, and `splits` of them hold max_context tokens.
[[nodiscard]] std::int64_t prefill_split_tokens(std::int64_t max_context, std::int64_t splits);
// 0 for one split.
[[nodiscard]] std::int64_t prefill_partial_floats(std::int64_t query_blocks, std::int64_t kv_heads,
                                                  std::int64_t head_dim, std::int64_t splits);

}  // namespace triphase
