#include "kernels/sizing/cuda_workspace.h"

#include <algorithm>

#include "kernels/sampling.h"
#include "kernels/sizing/regions.h"

namespace triphase {

SplitPlanLayout split_plan_layout(std::int64_t rows, std::int64_t part_count) {
  Regions all(kCudaRegionAlignment);
  return {.parts_at = all.take(part_count * 16),
          .row_parts_at = all.take(rows * 8),
          .prefix_at = all.take((rows + 1) * 4),
          .bytes = all.bytes()};
}

std::int64_t gather_attn_parts(std::int64_t multiprocessors,
                               std::int64_t shared_bytes_per_multiprocessor, std::int64_t head_dim,
                               std::int64_t group, bool quantized, bool listed) {
  const std::int64_t dim = gather_attn_dim(head_dim);
  std::int64_t block_bytes = gather_mma_block_bytes(dim);
  std::int64_t by_registers = gather_mma_blocks(dim);
  const auto take = [&](const auto& warp) {
    block_bytes = warp.bytes();
    by_registers = warp.resident();
  };
  if (quantized && listed && group > 1) {
    take(gather_group_warp(dim, group));
  } else if (quantized) {
    take(gather_code_warp(dim, group, listed));
  }
  const std::int64_t by_shared = std::max<std::int64_t>(
      1, shared_bytes_per_multiprocessor / (block_bytes + kGatherSystemBytes));
  return multiprocessors * std::min(by_registers, by_shared);
}

GatherStatesLayout gather_states_layout(std::int64_t rows, std::int64_t part_count,
                                        std::int64_t group, std::int64_t head_dim, bool quantized) {
  const std::int64_t results = part_count + rows * (quantized ? 2 : 1);
  Regions all(kCudaRegionAlignment);
  return {.results = results,
          .states_at = all.take(results * group * head_dim * 4),
          .max_sum_at = all.take(results * group * 8),
          .bytes = all.bytes()};
}

std::int64_t prefill_query_blocks(std::int64_t query_count, std::int64_t group,
                                  std::int64_t block_rows) {
  const std::int64_t queries = std::max<std::int64_t>(1, block_rows / group);
  return ceil_div(query_count, queries);
}

PrefillSplits prefill_splits(std::int64_t query_blocks, std::int64_t kv_heads,
                             std::int64_t max_context, std::int64_t multiprocessors) {
  // A split shorter than this is not worth its merge.
  constexpr std::int64_t kFewestTokens = 512;
  constexpr std::int64_t kPage = 128;
  const std::int64_t blocks = std::max<std::int64_t>(1, query_blocks * kv_heads);
  const std::int64_t wanted = kPrefillBlocksEach * multiprocessors / blocks;
  PrefillSplits splits;
  splits.count =
      std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(1, max_context / kFewestTokens));
  splits.tokens = std::max<std::int64_t>(1, ceil_div(max_context, splits.count * kPage)) * kPage;
  return splits;
}

PrefillSplits prefill_fixed_splits(std::int64_t max_context) {
  return {std::max<std::int64_t>(1, ceil_div(max_context, kPrefillFixedTokens)),
          kPrefillFixedTokens};
}

std::int64_t prefill_partial_floats(std::int64_t query_blocks, std::int64_t block_rows,
                                    std::int64_t kv_heads, std::int64_t head_dim,
                                    std::int64_t splits) {
  return splits > 1 ? query_blocks * kv_heads * splits * block_rows * (head_dim + 2) : 0;
}

std::int64_t paged_query_blocks(std::int64_t query_count, std::int64_t group) {
  return prefill_query_blocks(query_count, group, kPagedRows);
}

std::int64_t paged_attention_floats(std::int64_t query_blocks, std::int64_t kv_heads,
                                    std::int64_t head_dim, std::int64_t max_context) {
  const std::int64_t splits = std::max<std::int64_t>(1, ceil_div(max_context, kPagedSplitTokens));
  return query_blocks * kv_heads * splits * kPagedRows * (head_dim + 2);
}

GatherScratch gather_scratch(std::int64_t sequences, std::int64_t heads, std::int64_t kv_heads,
                             std::int64_t head_dim, std::int64_t part_count, bool quantized) {
  const std::int64_t rows = sequences * kv_heads;
  const std::int64_t group = heads / kv_heads;
  GatherScratch scratch;
  scratch.plan_bytes = cuda_region_bytes(split_plan_bytes(rows, part_count));
  scratch.bytes =
      scratch.plan_bytes +
      cuda_region_bytes(gather_states_layout(rows, part_count, group, head_dim, quantized).bytes);
  return scratch;
}

std::int64_t rounded_activation_bytes(std::int64_t rows, std::int64_t cols) {
  return rows * round_up(cols, kGemmRowElements) * 2;
}

bool prefill_attention_serves(DType dtype, DType partial_dtype, std::int64_t head_dim,
                              std::int64_t page_tokens, std::int64_t group) {
  const auto is_16_bit = [](DType type) { return type == DType::kF16 || type == DType::kBF16; };
  const bool page_is_power = page_tokens >= 32 && (page_tokens & (page_tokens - 1)) == 0;
  return (is_16_bit(dtype) || (dtype == DType::kInt8 && is_16_bit(partial_dtype))) &&
         head_dim > 0 && head_dim <= 256 && head_dim % 8 == 0 && page_is_power && group >= 1 &&
         group <= 64;
}

CudaScratchBytes cuda_scratch_bytes(const GpuMachine& machine, const OpsShape& shape) {
  constexpr std::int64_t kUnitTokens = 32;  // of a plan
  const AttentionShape& attention = shape.attention;
  const std::int64_t list_tokens = list_capacity(shape.max_list_tokens);
  const bool quantized = shape.kv_dtype == DType::kInt8;
  const std::int64_t group = attention.heads / attention.kv_heads;
  CudaScratchBytes bytes;
  bytes.mover_arguments = 2 * kCudaMoverRingBytes;
  // The library's product is not for deterministic runs.
  if (!machine.deterministic) {
    bytes.activations = rounded_activation_bytes(attention.max_query_rows, shape.widest_input);
  }
  if (machine.gemm_library) bytes.gemm_workspace = cuda_region_bytes(kGemmWorkspaceBytes);

  const std::int64_t rows = shape.max_sequences * attention.kv_heads;
  const std::int64_t parts =
      machine.deterministic
          ? 1 + rows * ceil_div(list_tokens, kUnitTokens)
          : gather_attn_parts(machine.multiprocessors, machine.shared_bytes_per_multiprocessor,
                              attention.head_dim, group, quantized, list_tokens > 0);
  bytes.attention = gather_scratch(shape.max_sequences, attention.heads, attention.kv_heads,
                                   attention.head_dim, parts, quantized)
                        .bytes;
  if (!machine.deterministic) {
    bytes.step_plan = cuda_region_bytes(split_plan_bytes(rows, parts));
    if (shape.windows) bytes.window_plan = bytes.step_plan;
    if (list_tokens > 0) bytes.list_plan = bytes.step_plan;
  }
  // Every segment may end in a block that is not full.
  const auto query_blocks = [&](std::int64_t of_rows) { return of_rows + shape.max_sequences; };
  const bool on_tensor_cores =
      prefill_attention_serves(shape.kv_dtype, shape.partial_dtype, attention.head_dim,
                               shape.page_tokens, group) &&
      prefill_attention_shared_bytes(shape.kv_dtype, attention.head_dim) <=
          machine.shared_bytes_per_block;
  const std::int64_t block_rows = prefill_rows(shape.kv_dtype, attention.head_dim);
  std::int64_t floats = 0;
  if (!on_tensor_cores) {
    floats =
        paged_attention_floats(query_blocks(paged_query_blocks(attention.max_query_rows, group)),
                               attention.kv_heads, attention.head_dim, attention.max_context);
  } else if (machine.deterministic) {
    const std::int64_t longest =
        attention.max_context + (shape.prompt_unit_rows > 0 ? kPrefillListGap : 0);
    floats = prefill_partial_floats(
        query_blocks(prefill_query_blocks(attention.max_query_rows, group, block_rows)), block_rows,
        attention.kv_heads, attention.head_dim, prefill_fixed_splits(longest).count);
  } else {
    const std::int64_t most = kPrefillBlocksEach * machine.multiprocessors;
    floats = prefill_partial_floats(1, block_rows, 1, attention.head_dim,
                                    std::max<std::int64_t>(2, most));
  }
  std::int64_t prefill = 4 * floats;
  if (shape.prompt_unit_rows > 0) {
    prefill +=
        listed_layout(attention.kv_heads, shape.clustered_tokens, attention.head_dim, quantized)
            .bytes;
  }
  bytes.attention = std::max(bytes.attention, prefill);
  if (list_tokens > 0) {
    // As many rows are scored together as it has room for.
    constexpr std::int64_t kScoresTogether = std::int64_t{1} << 20;
    const std::int64_t together =
        std::clamp<std::int64_t>(kScoresTogether / cuda_sparse_scratch(attention).bytes, 1,
                                 std::max<std::int64_t>(1, shape.max_sequences));
    bytes.selection = std::max(cuda_sparse_scratch(attention, together).bytes,
                               4 * prompt_total_floats(attention.heads, attention.max_context));
    if (shape.fine_clusters > 0) {
      // All rows of a layer choose in one go: they are as many as have room for one each.
      const std::int64_t row = cuda_cluster_scratch(attention.heads, attention.kv_heads,
                                                    shape.fine_clusters, shape.coarse_clusters, 1)
                                   .bytes;
      bytes.selection = std::max(bytes.selection, shape.max_sequences * row);
    }
    // Of a prompt's units all but the last are whole.
    std::int64_t choices = shape.max_sequences;
    if (shape.prompt_unit_rows > 0) {
      choices += attention.max_query_rows / shape.prompt_unit_rows;
      bytes.selection = std::max(
          bytes.selection, cuda_cluster_unit_scratch(attention.heads, attention.kv_heads,
                                                     shape.fine_clusters, shape.coarse_clusters)
                               .bytes);
    }
    bytes.lists =
        cuda_list_layout(choices, shape.sequence_lists, list_tokens, attention.heads).bytes;
  }
  const std::int64_t pages = table_pages(ceil_div(attention.max_context, shape.page_tokens));
  // INT8: a row's partial page, its slot and a block that fills up, in every layer.
  const std::int64_t partial = quantized ? 5 * shape.layers : 0;
  // Pages, the host's blocks, and scales; and of each row its place and its angles.
  const std::int64_t step = cuda_region_bytes(
      4 * (shape.max_sequences * ((quantized ? 3 : 2) * (pages + 1) + 1 + partial) +
           attention.max_query_rows * (1 + attention.head_dim)));
  bytes.arguments = kCudaArgumentRingBytes + 2 * step;
  bytes.results = shape.max_sampled_rows * static_cast<std::int64_t>(sizeof(SampleResult));
  return bytes;
}

CudaListLayout cuda_list_layout(std::int64_t rows, std::int64_t lists, std::int64_t capacity,
                                std::int64_t heads) {
  Regions all(kCudaRegionAlignment);
  return {.tokens_at = all.take(4 * rows * lists * capacity),
          .counts_at = all.take(4 * rows * lists),
          .alpha_at = all.take(4 * rows * heads),
          .bytes = all.bytes()};
}

CudaClusterScratch cuda_cluster_scratch(std::int64_t heads, std::int64_t kv_heads,
                                        std::int64_t fine, std::int64_t coarse, std::int64_t rows) {
  const std::int64_t most = std::max(fine, coarse);
  Regions all(kCudaRegionAlignment);
  return {.logits_at = all.take(4 * rows * heads * most),
          .partials_at = all.take(4 * rows * heads * ceil_div(most, kScoreTile) * 2),
          .totals_at = all.take(4 * rows * heads * 2),
          .scores_at = all.take(4 * rows * kv_heads * fine),
          .coarse_scores_at = all.take(4 * rows * kv_heads * coarse),
          .alive_at = all.take(coarse > 0 ? rows * kv_heads * fine : 0),
          .bytes = all.bytes()};
}

CudaClusterUnitScratch cuda_cluster_unit_scratch(std::int64_t heads, std::int64_t kv_heads,
                                                 std::int64_t fine, std::int64_t coarse) {
  Regions all(kCudaRegionAlignment);
  return {.log_sums_at = all.take(4 * kColumnSliceQueries * heads),
          .log_partials_at = all.take(
              4 * prefill_log_sum_floats(kColumnSliceQueries, heads, std::max(fine, coarse))),
          .scores_at = all.take(4 * kv_heads * fine),
          .coarse_scores_at = all.take(4 * kv_heads * coarse),
          .alive_at = all.take(coarse > 0 ? kv_heads * fine : 0),
          .bytes = all.bytes()};
}

ListedLayout listed_layout(std::int64_t kv_heads, std::int64_t tokens, std::int64_t head_dim,
                           bool quantized) {
  const std::int64_t values = kv_heads * tokens * head_dim * (quantized ? 4 : 2);
  Regions all(kCudaRegionAlignment);
  (void)all.take(values);  // K
  return {.v_at = all.take(values), .counts_at = all.take(4 * kv_heads), .bytes = all.bytes()};
}

std::int64_t prompt_total_floats(std::int64_t heads, std::int64_t context) {
  constexpr std::int64_t kRows = 256;
  const std::int64_t shares = ceil_div(heads, kPromptShareHeads);
  if (shares == 1) return 0;
  return std::min(kPromptTotalFloats, shares * round_up(std::min(kRows, context), kPromptTileSide) *
                                          round_up(context, kPromptTileSide));
}

CudaSparseScratch cuda_sparse_scratch(const AttentionShape& shape, std::int64_t rows) {
  const std::int64_t context = shape.max_context;
  Regions all(kCudaRegionAlignment);
  return {.channels_at = all.take(4 * rows * shape.kv_heads * shape.head_dim),
          .factors_at = all.take(4 * rows * shape.heads),
          .logits_at = all.take(4 * rows * shape.heads * context),
          .partials_at = all.take(4 * rows * shape.heads * ceil_div(context, kScoreTile) * 2),
          .scores_at = all.take(4 * rows * shape.heads * context),
          .totals_at = all.take(4 * rows * shape.heads * 2),
          .bytes = all.bytes()};
}

}  // namespace triphase
