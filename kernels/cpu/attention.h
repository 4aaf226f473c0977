#pragma once

// Attention over paged KV, all tokens or selected ones. Arguments are checked by CpuOps.

#include "base/thread_pool.h"
#include "kernels/ops.h"
#include "kernels/sizing/attention_workspace.h"

namespace triphase::cpu {

// Scores that a call keeps for the weights of one selection (AttentionShape::weighted_scores).
[[nodiscard]] inline std::int64_t weighted_scores(const TokenSelection& selection,
                                                  std::int64_t heads) {
  return selection.begins.back() *
         (heads / (static_cast<std::int64_t>(selection.begins.size()) - 1));
}

// See Ops::attention. `shape` holds this call's rows and longest context; the workspace, aligned to
// 64 bytes, is laid out by it.
void attention(ThreadPool& pool, ConstMatrix q, std::int64_t heads, const KvLayerView& cache,
               std::span<const AttentionSegment> segments, float scale, Matrix out,
               const AttentionShape& shape, Workspace workspace);

}  // namespace triphase::cpu
