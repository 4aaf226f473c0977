#pragma once

// SparQ's choice of channels, scoring and selection in one kernel, a block per row: logits and
// scores never leave shared memory. It replaces choose_channels, score_sparq, group_scores,
// select_top and selected_share (score_rows.h, select_rows.h) where a row fits; they define it, and
// longer rows take them. A row is (sequence, KV head); all pointers are device memory.

#include <cstdint>

#include "kernels/cuda/score_rows.h"

namespace triphase::cuda {

struct SparqSelect {
  // F16, BF16 or U8 keys. With `channels` a warp reads 16 bytes (8 codes: 8 bytes) of a channel per
  // lane; without, and in the query's own block, single elements of the tokens' rows.
  ScoreKeys keys;
  ScoreQueries queries;
  std::int64_t rank = 0;
  SparqScale scale;
  // As in SelectRows: at most k tokens in all, the forced ones counted.
  std::int64_t k = 0;
  std::int64_t local = 0;
  const std::int32_t* locals = nullptr;
  const std::int32_t* ks = nullptr;
  std::int32_t* indices = nullptr;  // [rows][capacity], ascending
  std::int64_t capacity = 0;
  std::int32_t* counts = nullptr;  // [rows]
  float* alpha = nullptr;          // [rows][g]: the selected tokens' share of each softmax
};

// Needs max_length <= sparq_select_tokens (kernels/sizing/cuda_workspace.h).
void sparq_select(const SparqSelect& call, StreamHandle stream);

}  // namespace triphase::cuda
