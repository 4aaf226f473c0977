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
  // Two blocks fit on a multiprocessor; a split shorter than this is not worth its merge.
  constexpr std::int64_t kBlocksEach = 2;
  constexpr std::int64_t kFewestTokens = 512;
  const std::int64_t blocks = std::max<std::int64_t>(1, query_blocks * kv_heads);
  const std::int64_t wanted = kBlocksEach * multiprocessors / blocks;
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

}  // namespace triphase
