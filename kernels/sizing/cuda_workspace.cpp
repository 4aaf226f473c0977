#include "kernels/sizing/cuda_workspace.h"

#include <algorithm>

namespace triphase {

SplitPlanLayout split_plan_layout(std::int64_t rows, std::int64_t part_count) {
  SplitPlanLayout layout;
  layout.parts_at = 0;
  layout.row_parts_at = layout.parts_at + cuda_region_bytes(part_count * 16);
  layout.prefix_at = layout.row_parts_at + cuda_region_bytes(rows * 8);
  layout.bytes = layout.prefix_at + cuda_region_bytes((rows + 1) * 4);
  return layout;
}

std::int64_t gather_attn_parts(std::int64_t multiprocessors,
                               std::int64_t shared_bytes_per_multiprocessor, std::int64_t group) {
  // Blocks of 4 warps and 48 KiB, of which the system takes 1 KiB more each; registers allow 4, 3
  // or 2 of them (the launch bounds of gather_attn_kernel.h).
  constexpr std::int64_t kWarps = 4;
  constexpr std::int64_t kBlockBytes = 49 * 1024;
  const std::int64_t by_registers = group == 1 ? 4 : group <= 4 ? 3 : 2;
  const std::int64_t by_shared =
      std::max<std::int64_t>(1, shared_bytes_per_multiprocessor / kBlockBytes);
  return multiprocessors * std::min(by_registers, by_shared) * kWarps;
}

GatherStatesLayout gather_states_layout(std::int64_t rows, std::int64_t part_count,
                                        std::int64_t group, std::int64_t head_dim, bool quantized) {
  GatherStatesLayout layout;
  layout.results = part_count + rows * (quantized ? 2 : 1);
  layout.states_at = 0;
  layout.max_sum_at = cuda_region_bytes(layout.results * group * head_dim * 4);
  layout.bytes = layout.max_sum_at + cuda_region_bytes(layout.results * group * 8);
  return layout;
}

std::int64_t prefill_query_blocks(std::int64_t query_count, std::int64_t group) {
  const std::int64_t queries = std::max<std::int64_t>(1, kPrefillRows / group);
  return (query_count + queries - 1) / queries;
}

std::int64_t prefill_splits(std::int64_t query_blocks, std::int64_t kv_heads,
                            std::int64_t max_context, std::int64_t multiprocessors) {
  // A split shorter than this is not worth its merge.
  constexpr std::int64_t kFewestTokens = 512;
  const std::int64_t blocks = std::max<std::int64_t>(1, query_blocks * kv_heads);
  const std::int64_t wanted = kPrefillBlocksEach * multiprocessors / blocks;
  return std::clamp<std::int64_t>(wanted, 1,
                                  std::max<std::int64_t>(1, max_context / kFewestTokens));
}

std::int64_t prefill_split_tokens(std::int64_t max_context, std::int64_t splits) {
  constexpr std::int64_t kPage = 128;
  return std::max<std::int64_t>(1, (max_context + splits * kPage - 1) / (splits * kPage)) * kPage;
}

std::int64_t prefill_partial_floats(std::int64_t query_blocks, std::int64_t kv_heads,
                                    std::int64_t head_dim, std::int64_t splits) {
  return splits > 1 ? query_blocks * kv_heads * splits * kPrefillRows * (head_dim + 2) : 0;
}

std::int64_t paged_query_blocks(std::int64_t query_count, std::int64_t group) {
  const std::int64_t queries = std::max<std::int64_t>(1, kPagedRows / group);
  return (query_count + queries - 1) / queries;
}

std::int64_t paged_attention_floats(std::int64_t query_blocks, std::int64_t kv_heads,
                                    std::int64_t head_dim, std::int64_t max_context) {
  const std::int64_t splits =
      std::max<std::int64_t>(1, (max_context + kPagedSplitTokens - 1) / kPagedSplitTokens);
  return query_blocks * kv_heads * splits * kPagedRows * (head_dim + 2);
}

GatherScratch gather_scratch(std::int64_t sequences, std::int64_t heads, std::int64_t kv_heads,
                             std::int64_t head_dim, std::int64_t part_count, bool quantized,
                             std::int64_t weighted_lists, std::int64_t capacity) {
  constexpr std::int64_t kFloat = 4;
  const std::int64_t rows = sequences * kv_heads;
  const std::int64_t group = heads / kv_heads;
  const bool weighted = weighted_lists > 0;
  GatherScratch scratch;
  scratch.plan_bytes = cuda_region_bytes(split_plan_bytes(rows, part_count));
  scratch.states_at = scratch.plan_bytes;
  scratch.logits_at =
      scratch.states_at +
      cuda_region_bytes(gather_states_layout(rows, part_count, group, head_dim, quantized).bytes);
  scratch.lse_at =
      scratch.logits_at + (weighted ? cuda_region_bytes(rows * group * capacity * kFloat) : 0);
  scratch.weights_at =
      scratch.lse_at + (weighted ? cuda_region_bytes(sequences * heads * kFloat) : 0);
  scratch.bytes = scratch.weights_at + cuda_region_bytes(weighted_lists * capacity * kFloat);
  return scratch;
}

std::int64_t rounded_activation_bytes(std::int64_t rows, std::int64_t cols) {
  const std::int64_t stride = (cols + kGemmRowElements - 1) / kGemmRowElements * kGemmRowElements;
  return rows * stride * 2;
}

CudaScratchBytes cuda_scratch_bytes(const CudaScratchShape& shape) {
  constexpr std::int64_t kUnitTokens = 32;  // of a plan
  const AttentionShape& attention = shape.attention;
  const std::int64_t rows = shape.max_sequences * attention.kv_heads;
  const std::int64_t group = attention.heads / attention.kv_heads;
  CudaScratchBytes bytes;
  bytes.arguments = kCudaArgumentRingBytes;
  bytes.activations = rounded_activation_bytes(attention.max_query_rows, shape.widest_input);

  const std::int64_t parts =
      shape.deterministic
          ? 1 + rows * ((shape.max_list_tokens + kUnitTokens - 1) / kUnitTokens)
          : gather_attn_parts(shape.multiprocessors, shape.shared_bytes_per_multiprocessor, group);
  bytes.attention = gather_scratch(shape.max_sequences, attention.heads, attention.kv_heads,
                                   attention.head_dim, parts, shape.quantized,
                                   shape.max_list_tokens > 0 ? rows : 0, shape.max_list_tokens)
                        .bytes;
  // Every segment may end in a block that is not full.
  const std::int64_t paged_blocks =
      paged_query_blocks(attention.max_query_rows, group) + shape.max_sequences;
  const std::int64_t paged = 4 * paged_attention_floats(paged_blocks, attention.kv_heads,
                                                        attention.head_dim, attention.max_context);
  const std::int64_t most_split = kPrefillBlocksEach * shape.multiprocessors;
  const std::int64_t prefill =
      4 * prefill_partial_floats(1, 1, attention.head_dim, std::max<std::int64_t>(2, most_split));
  bytes.attention = std::max(bytes.attention, shape.tensor_cores ? prefill : paged);
  return bytes;
}

}  // namespace triphase
