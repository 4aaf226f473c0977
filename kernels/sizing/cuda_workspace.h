#pragma once

// Device workspace of the CUDA kernels as pure functions of shapes: the planner budgets with them
// and the kernels lay their scratch out by them. Every region starts at a multiple of 256 bytes.

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/kv_scale.h"
#include "kernels/sizing/ops_scratch.h"

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

// gather_attn. A warp alone in its block has a ring of stages of kGatherMmaTokens tokens in shared
// memory and the queries of kGatherMmaHeads heads of a row in two 16-bit terms. With INT8 it has a
// tile of GatherCodeWarp::tile_tokens() with the scales of their blocks, and the queries in F32.
inline constexpr std::int64_t kGatherSystemBytes = 1024;  // what the system takes for each block
inline constexpr std::int64_t kGatherRingStages = 3;
inline constexpr std::int64_t kGatherMmaTokens = 16;
inline constexpr std::int64_t kGatherMmaHeads = 8;
// Channels that a kernel for head_dim keeps: 64, 128 or 256.
[[nodiscard]] constexpr std::int64_t gather_attn_dim(std::int64_t head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
}
[[nodiscard]] constexpr std::int64_t gather_mma_block_bytes(std::int64_t dim) {
  return kGatherRingStages * 2 * kGatherMmaTokens * dim * 2 + 4 * kGatherMmaHeads * dim;
}
// Blocks that a multiprocessor's registers must allow, as many as an H100's shared memory does or
// enough to wait for memory: the kernels' launch bounds.
[[nodiscard]] constexpr std::int64_t gather_mma_blocks(std::int64_t dim) {
  return dim <= 64 ? 12 : dim <= 128 ? 7 : 4;
}
inline constexpr std::int64_t kScaleBytes = sizeof(KvScale);  // of a channel in an INT8 block
// With INT8 a product serves two query heads in one KV block. Lists have few tokens in a block: of
// a single query head their tiles are of two blocks, and a product serves the head in both; of
// groups of heads they are GatherGroupWarp's.
struct GatherCodeWarp {
  std::int64_t dim = 0;
  std::int64_t pairs = 0;
  bool listed = false;

  [[nodiscard]] constexpr std::int64_t heads() const { return listed ? 1 : 2 * pairs; }
  [[nodiscard]] constexpr std::int64_t tile_tokens() const { return listed ? 32 : 64; }
  [[nodiscard]] constexpr std::int64_t tile_blocks() const { return listed ? 2 : 1; }
  // Shared memory: keys and values, scales of each KV block, bytes of a pair's queries, and the
  // queries of several pairs.
  [[nodiscard]] constexpr std::int64_t bytes() const {
    return 2 * (tile_tokens() + kScaleBytes * tile_blocks()) * dim + 2 * (4 * dim + 64) +
           (pairs == 1 ? 0 : 4 * heads() * dim);
  }
  // Warps that a multiprocessor's registers must allow: no more than an H100's shared memory holds,
  // two or three for each of its four parts.
  [[nodiscard]] constexpr std::int64_t resident() const {
    const std::int64_t by_shared = 228 * 1024 / (bytes() + kGatherSystemBytes);
    return std::min<std::int64_t>(by_shared, dim <= 128 && pairs == 1 ? 12 : 8);
  }
};
[[nodiscard]] constexpr GatherCodeWarp gather_code_warp(std::int64_t dim, std::int64_t group,
                                                        bool listed) {
  const std::int64_t most = dim > 128 ? 2 : 4;  // pairs whose outputs registers hold
  const std::int64_t wanted = listed ? 1 : (group + 1) / 2;
  return {dim, wanted <= 2 ? wanted : most, listed};
}
// Lists of groups with INT8: sets of four query heads.
struct GatherGroupWarp {
  std::int64_t dim = 0;
  std::int64_t sets = 0;

  static constexpr std::int64_t kTileTokens = 32;
  static constexpr std::int64_t kSetHeads = 4;
  [[nodiscard]] constexpr std::int64_t heads() const { return kSetHeads * sets; }
  // Shared memory of 16 channels of a set's queries in two 16-bit terms, with room so that lanes
  // that write two of these at once do not meet at a bank.
  static constexpr std::int64_t kStepBytes = 16 * kSetHeads * 4 + 64;
  // Shared memory: keys and values, their scales, the queries in F32, and those that are scaled.
  [[nodiscard]] constexpr std::int64_t bytes() const {
    return 2 * (kTileTokens + kScaleBytes) * dim + 4 * heads() * dim + sets * dim / 16 * kStepBytes;
  }
  [[nodiscard]] constexpr std::int64_t resident() const {
    const std::int64_t by_shared = 228 * 1024 / (bytes() + kGatherSystemBytes);
    return std::min<std::int64_t>(by_shared, dim > 128 ? 8 : 12);
  }
};
[[nodiscard]] constexpr GatherGroupWarp gather_group_warp(std::int64_t dim, std::int64_t group) {
  return {dim, group > GatherGroupWarp::kSetHeads && dim <= 128 ? 2 : 1};
}
// Warps that a GPU runs at once, the number of parts a balanced plan should have. `group`: query
// heads of a KV head; `listed`: of lists of tokens.
[[nodiscard]] std::int64_t gather_attn_parts(std::int64_t multiprocessors,
                                             std::int64_t shared_bytes_per_multiprocessor,
                                             std::int64_t head_dim, std::int64_t group,
                                             bool quantized, bool listed);

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

// prefill_attention: blocks of prefill_rows rows (queries x query heads of a KV head). INT8 has
// few: a segment's queries lie in one block of the cache. By default contexts are split only when
// there are too few blocks for the multiprocessors, so that partial results never grow with the
// context; fixed splits lie at absolute positions, whatever the batch.
[[nodiscard]] constexpr std::int64_t prefill_rows(DType dtype, std::int64_t head_dim) {
  return dtype == DType::kInt8 || head_dim > 128 ? 64 : 128;
}
inline constexpr std::int64_t kPrefillBlocksEach = 2;  // that fit on a multiprocessor
inline constexpr std::int64_t kPrefillFixedTokens = 2048;
struct PrefillSplits {
  std::int64_t count = 1;
  std::int64_t tokens = 0;  // of a split, in whole pages of 128; the splits hold any context
};
[[nodiscard]] std::int64_t prefill_query_blocks(std::int64_t query_count, std::int64_t group,
                                                std::int64_t block_rows);
[[nodiscard]] PrefillSplits prefill_splits(std::int64_t query_blocks, std::int64_t kv_heads,
                                           std::int64_t max_context, std::int64_t multiprocessors);
[[nodiscard]] PrefillSplits prefill_fixed_splits(std::int64_t max_context);
// With listed tokens a context may have so many more: neither a list's last tile nor the first one
// behind it is whole.
inline constexpr std::int64_t kPrefillListGap = 128;
// Listed tokens of a prompt, copied side by side: K and V [kv_head][tokens][head_dim], in F32 where
// the cache is INT8, else in 16 bits; their number [kv_head]. Byte offsets from the start.
struct ListedLayout {
  std::int64_t v_at = 0;
  std::int64_t counts_at = 0;
  std::int64_t bytes = 0;
};
[[nodiscard]] ListedLayout listed_layout(std::int64_t kv_heads, std::int64_t tokens,
                                         std::int64_t head_dim, bool quantized);
// 0 for one split.
[[nodiscard]] std::int64_t prefill_partial_floats(std::int64_t query_blocks,
                                                  std::int64_t block_rows, std::int64_t kv_heads,
                                                  std::int64_t head_dim, std::int64_t splits);

// sparq_select: shared memory of a block besides kSparqSelectFixedBytes. It holds logits of each
// query head of a row; with several query heads, scores too. Also the longest row that fits where a
// block may have `shared_bytes` (0: none).
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

// One call of gather_attn with its plan and partial results.
struct GatherScratch {
  std::int64_t plan_bytes = 0;  // from 0 on
  std::int64_t bytes = 0;       // behind the plan: a GatherStatesLayout
};
[[nodiscard]] GatherScratch gather_scratch(std::int64_t sequences, std::int64_t heads,
                                           std::int64_t kv_heads, std::int64_t head_dim,
                                           std::int64_t part_count, bool quantized);

// Whether prefill_attention takes a cache: F16, BF16, or U8 over partial pages of F16 or BF16;
// head_dim a multiple of 8 up to 256, page_tokens a power of two from 32 on, at most 64 query heads
// per KV head.
[[nodiscard]] bool prefill_attention_serves(DType dtype, DType partial_dtype, std::int64_t head_dim,
                                            std::int64_t page_tokens, std::int64_t group);
// What a row of 16-bit elements has beside it, so that rows start at other banks.
inline constexpr std::int64_t kPrefillRowPad = 8;
// The shared memory of a block with tiles of so many keys: queries, two stages of tiles, what rows
// see. For wide heads of 16 bits, tiles may be half as long as prefill_most_keys: some GPUs have
// little shared memory (sm_86 and sm_89).
[[nodiscard]] constexpr std::int64_t prefill_most_keys(DType dtype, std::int64_t dim) {
  if (dtype == DType::kInt8) return 64;
  return dim > (dtype == DType::kF16 ? 128 : 64) ? 32 : 64;
}
[[nodiscard]] constexpr std::int64_t prefill_shared_bytes(DType dtype, std::int64_t dim,
                                                          std::int64_t keys) {
  const std::int64_t rows = prefill_rows(dtype, dim);
  const std::int64_t seen = 8 * rows;
  // F32 queries; codes, and the scales of K and V, once more as F32.
  if (dtype == DType::kInt8) {
    const std::int64_t stage = 2 * keys * (dim + 16) + 2 * kScaleBytes * dim;
    return 4 * rows * dim + 2 * 2 * 4 * dim + 2 * stage + seen;
  }
  const std::int64_t terms = dtype == DType::kF16 ? 1 : 2;
  return 2 * (dim + kPrefillRowPad) * (terms * rows + 2 * 2 * keys) + seen;
}
// With the longest tiles that a block's `shared_bytes` hold.
[[nodiscard]] constexpr std::int64_t prefill_tile_keys(DType dtype, std::int64_t head_dim,
                                                       std::int64_t shared_bytes) {
  const std::int64_t dim = gather_attn_dim(head_dim);
  const std::int64_t most = prefill_most_keys(dtype, dim);
  if (dtype == DType::kInt8 || dim <= 64) return most;
  return prefill_shared_bytes(dtype, dim, most) <= shared_bytes ? most : most / 2;
}
// Shared memory that a block needs at least.
[[nodiscard]] constexpr std::int64_t prefill_attention_shared_bytes(DType dtype,
                                                                    std::int64_t head_dim) {
  return prefill_shared_bytes(dtype, gather_attn_dim(head_dim),
                              prefill_tile_keys(dtype, head_dim, 0));
}

// What a cache on a GPU may be made of: pages of 32, 64 or 128 tokens of F16, BF16 or INT8.
[[nodiscard]] constexpr bool gpu_takes_pages(std::int64_t page_tokens) {
  return page_tokens == 32 || page_tokens == 64 || page_tokens == 128;
}
// A token's page is its slot shifted right by so much.
[[nodiscard]] constexpr int page_shift(std::int64_t page_tokens) {
  return std::countr_zero(static_cast<std::uint64_t>(page_tokens));
}

// Channels of a head at most; of attention over chosen tokens a multiple of the second.
inline constexpr std::int64_t kGpuMaxHeadDim = 256;
inline constexpr std::int64_t kGpuSelectionHeadDim = 8;
// Query heads of one KV head at most, where keys or centroids are scored to choose by.
inline constexpr std::int64_t kGpuMaxScoredGroup = 8;

// All that the CUDA Ops, SparseOps and InputOps allocate for themselves, for calls that stay within
// `shape`. The memory budget counts it before anything is allocated; once they were told the shape
// they hold exactly this and allocate nothing later.
struct CudaScratchBytes {
  std::int64_t arguments = 0;        // on the device, and as much again in pinned host memory
  std::int64_t mover_arguments = 0;  // the same, of the link's two movers
  std::int64_t gemm_workspace = 0;   // the GEMM library's own workspace, held from its start
  std::int64_t activations = 0;
  std::int64_t attention = 0;
  std::int64_t selection = 0;    // CudaSparseScratch of the longest context, or CudaClusterScratch
  std::int64_t lists = 0;        // CudaListLayout of all sequences
  std::int64_t step_plan = 0;    // of attention over whole contexts, for all layers of a step
  std::int64_t window_plan = 0;  // the same, of attention over windows
  std::int64_t list_plan = 0;    // the same, of attention over lists
  std::int64_t results = 0;      // of Ops::sample, on their way to the host
  [[nodiscard]] std::int64_t device() const {
    return arguments + mover_arguments + gemm_workspace + activations + attention + selection +
           lists + step_plan + window_plan + list_plan + results;
  }
};
[[nodiscard]] CudaScratchBytes cuda_scratch_bytes(const GpuMachine& machine, const OpsShape& shape);
// Activations rounded to 16 bits for the library's product, in rows of whole vectors.
inline constexpr std::int64_t kGemmRowElements = 8;
[[nodiscard]] std::int64_t rounded_activation_bytes(std::int64_t rows, std::int64_t cols);
// Lists and small arrays of two steps on their way to the device, beside their tables and rope
// angles; what does not fit makes the ring grow.
inline constexpr std::int64_t kCudaArgumentRingBytes = std::int64_t{16} << 20;
// Of each of the link's two movers (kernels/cuda/kv_mover.h).
inline constexpr std::int64_t kCudaMoverRingBytes = std::int64_t{4} << 20;

// Pages in a row of page tables where the longest context has so many: whole steps, as
// list_capacity().
[[nodiscard]] constexpr std::int64_t table_pages(std::int64_t pages) {
  constexpr std::int64_t kUnit = 8;
  return (pages + kUnit - 1) / kUnit * kUnit;
}

// cuBLASLt's workspace: what NVIDIA advises for Hopper.
inline constexpr std::int64_t kGemmWorkspaceBytes = std::int64_t{32} << 20;

// prefill_log_sums: centroids are split; (maximum, sum) per row, KV head and split. A prompt's
// queries choose clusters in slices, so that the scratch does not grow with their number.
inline constexpr std::int64_t kColumnSplitTokens = 1024;
inline constexpr std::int64_t kColumnSliceQueries = 256;
[[nodiscard]] constexpr std::int64_t prefill_log_sum_splits(std::int64_t context) {
  return context <= kColumnSplitTokens ? 1
                                       : (context + kColumnSplitTokens - 1) / kColumnSplitTokens;
}
[[nodiscard]] constexpr std::int64_t prefill_log_sum_floats(std::int64_t queries,
                                                            std::int64_t heads,
                                                            std::int64_t context) {
  return queries * heads * prefill_log_sum_splits(context) * 2;
}

// add_prompt_rows: a block adds up the weights of so many query heads; a second kernel adds up what
// they left, for tiles of so many rows and keys, at most kPromptTotalFloats at once. A weight's
// bits do not depend on how many that is. Floats for the last rows of a prompt: with more there
// would be fewer launches, and rarely.
inline constexpr int kPromptShareHeads = 4;
inline constexpr std::int64_t kPromptTileSide = 64;
inline constexpr std::int64_t kPromptTotalFloats = std::int64_t{1} << 22;
[[nodiscard]] std::int64_t prompt_total_floats(std::int64_t heads, std::int64_t context);

// A Selection of the CUDA SparseOps. Byte offsets from the start.
struct CudaListLayout {
  std::int64_t tokens_at = 0;  // [rows][lists][capacity]
  std::int64_t counts_at = 0;  // [rows][lists]
  std::int64_t alpha_at = 0;   // [rows][heads]
  std::int64_t bytes = 0;
};
[[nodiscard]] CudaListLayout cuda_list_layout(std::int64_t rows, std::int64_t lists,
                                              std::int64_t capacity, std::int64_t heads);

// score_rows: tokens per tile of the logits and of the partial maxima and sums.
inline constexpr std::int64_t kScoreTile = 128;

// choose_by_clusters of the CUDA SparseOps, for some rows. Byte offsets from the start.
struct CudaClusterScratch {
  std::int64_t logits_at = 0;  // of one level at a time: [rows][heads][clusters]
  std::int64_t partials_at = 0;
  std::int64_t totals_at = 0;         // [rows][heads][2]
  std::int64_t scores_at = 0;         // [rows][kv_heads][fine]
  std::int64_t coarse_scores_at = 0;  // [rows][kv_heads][coarse]
  std::int64_t alive_at = 0;          // [rows][kv_heads][fine], bytes
  std::int64_t bytes = 0;
};
// `coarse`: 0 for one level.
[[nodiscard]] CudaClusterScratch cuda_cluster_scratch(std::int64_t heads, std::int64_t kv_heads,
                                                      std::int64_t fine, std::int64_t coarse,
                                                      std::int64_t rows);

// The same for the queries of a prompt that choose together. Byte offsets from the start.
struct CudaClusterUnitScratch {
  std::int64_t log_sums_at = 0;  // [kColumnSliceQueries][heads]
  std::int64_t log_partials_at = 0;
  std::int64_t scores_at = 0;         // [kv_heads][fine]
  std::int64_t coarse_scores_at = 0;  // [kv_heads][coarse]
  std::int64_t alive_at = 0;          // [kv_heads][fine], bytes
  std::int64_t bytes = 0;
};
[[nodiscard]] CudaClusterUnitScratch cuda_cluster_unit_scratch(std::int64_t heads,
                                                               std::int64_t kv_heads,
                                                               std::int64_t fine,
                                                               std::int64_t coarse);

// One call of the CUDA SparseOps for some rows: where they are too long for sparq_select, logits,
// their partials and scores. Scores are also where those of pages and centroids are made. Byte
// offsets from the start.
struct CudaSparseScratch {
  std::int64_t channels_at = 0;
  std::int64_t factors_at = 0;
  std::int64_t logits_at = 0;  // [rows][heads][max_context]
  std::int64_t partials_at = 0;
  std::int64_t scores_at = 0;  // [rows][heads][max_context]
  std::int64_t totals_at = 0;
  std::int64_t bytes = 0;
};
// `max_context` is also the largest number of pages or clusters. Grows at most as fast as `rows`.
[[nodiscard]] CudaSparseScratch cuda_sparse_scratch(const AttentionShape& shape,
                                                    std::int64_t rows = 1);

}  // namespace triphase
