#pragma once

// Device workspace of the CUDA kernels as pure functions of shapes: the planner budgets with them
// and the kernels lay their scratch out by them. Every region starts at a multiple of 256 bytes.

#include <cstdint>

#include "kernels/sizing/attention_workspace.h"

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
inline constexpr std::int64_t kPrefillBlocksEach = 2;  // that fit on a multiprocessor
[[nodiscard]] std::int64_t prefill_query_blocks(std::int64_t query_count, std::int64_t group);
[[nodiscard]] std::int64_t prefill_splits(std::int64_t query_blocks, std::int64_t kv_heads,
                                          std::int64_t max_context, std::int64_t multiprocessors);
// Tokens of a split: whole pages of 128, and `splits` of them hold max_context tokens.
[[nodiscard]] std::int64_t prefill_split_tokens(std::int64_t max_context, std::int64_t splits);
// 0 for one split.
[[nodiscard]] std::int64_t prefill_partial_floats(std::int64_t query_blocks, std::int64_t kv_heads,
                                                  std::int64_t head_dim, std::int64_t splits);

// sparq_select: shared memory of a block besides kSparqSelectFixedBytes, in floats: logits of each
// query head of a row, and with several of them scores; and the longest row that fits where a block
// may have `shared_bytes` (0: none).
inline constexpr std::int64_t kSparqSelectFixedBytes = std::int64_t{20} << 10;
[[nodiscard]] constexpr std::int64_t sparq_select_stride(std::int64_t max_length) {
  return (max_length + 3) / 4 * 4;
}
[[nodiscard]] constexpr std::int64_t sparq_select_shared_bytes(std::int64_t group,
                                                               std::int64_t max_length) {
  return (group > 1 ? group + 1 : 1) * sparq_select_stride(max_length) * 4;
}
[[nodiscard]] constexpr std::int64_t sparq_select_tokens(std::int64_t group,
                                                         std::int64_t shared_bytes) {
  const std::int64_t left = shared_bytes - kSparqSelectFixedBytes;
  return left > 0 ? left / (4 * (group > 1 ? group + 1 : 1)) / 4 * 4 : 0;
}

// paged_attention: blocks of kPagedRows rows; every context is split at absolute positions, and
// each block leaves a partial result per split of the longest context.
inline constexpr std::int64_t kPagedRows = 16;
inline constexpr std::int64_t kPagedSplitTokens = 2048;
[[nodiscard]] std::int64_t paged_query_blocks(std::int64_t query_count, std::int64_t group);
[[nodiscard]] std::int64_t paged_attention_floats(std::int64_t query_blocks, std::int64_t kv_heads,
                                                  std::int64_t head_dim, std::int64_t max_context);

// One call of gather_attn with its plan, partial results and, where a caller asks for the tokens'
// weights, logits, log-sum-exps and weights of the lists. Byte offsets from the start.
struct GatherScratch {
  std::int64_t plan_bytes = 0;  // from 0 on
  std::int64_t states_at = 0;   // a GatherStatesLayout
  std::int64_t logits_at = 0;
  std::int64_t lse_at = 0;
  std::int64_t weights_at = 0;
  std::int64_t bytes = 0;
};
// `weighted_lists` lists of `capacity` tokens; 0: nobody asks for weights.
[[nodiscard]] GatherScratch gather_scratch(std::int64_t sequences, std::int64_t heads,
                                           std::int64_t kv_heads, std::int64_t head_dim,
                                           std::int64_t part_count, bool quantized,
                                           std::int64_t weighted_lists, std::int64_t capacity);

// All that the CUDA Ops allocate for themselves, for calls that stay within `shape`. The memory
// budget counts it before anything is allocated; Ops that were told the shape allocate exactly this
// at the start and nothing later.
struct CudaScratchShape {
  AttentionShape attention;          // threads and weighted_scores do not matter
  std::int64_t max_sequences = 0;    // segments of one attention call
  std::int64_t max_list_tokens = 0;  // longest list of a selection; 0: no selections
  std::int64_t widest_input = 0;     // columns of the widest x of `linear`
  bool quantized = false;            // INT8 cache
  bool deterministic = false;        // CudaOpsSettings
  bool tensor_cores = true;          // prefill_attention serves the cache, outside `deterministic`
  std::int64_t multiprocessors = 1;
  std::int64_t shared_bytes_per_multiprocessor = 0;
};
struct CudaScratchBytes {
  std::int64_t arguments = 0;  // on the device, and as much again in pinned host memory
  std::int64_t activations = 0;
  std::int64_t attention = 0;
  [[nodiscard]] std::int64_t device() const { return arguments + activations + attention; }
};
[[nodiscard]] CudaScratchBytes cuda_scratch_bytes(const CudaScratchShape& shape);
// Activations rounded to 16 bits for the library's product, in rows of whole vectors.
inline constexpr std::int64_t kGemmRowElements = 8;
[[nodiscard]] std::int64_t rounded_activation_bytes(std::int64_t rows, std::int64_t cols);
// Tables and lists on their way to the device; what does not fit makes the ring grow.
inline constexpr std::int64_t kCudaArgumentRingBytes = std::int64_t{16} << 20;

}  // namespace triphase
