#pragma once

// Joins partial attention states into outputs: log-sum-exp merge of what gather_attn left, of
// states from elsewhere (another device part, host tokens computed by the CPU), and mean-value
// reallocation. Empty states (sum 0, max -inf) count for nothing; a query that saw no token at all
// gives zeros and lse -inf. Order of summation: parts ascending, the partial block, then the
// others.

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/plan_splits.h"
#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

// `per_row` states of every row: states[row][i][query head of the row][head_dim], unnormalized, and
// (max, sum) pairs [row][i][query head] in units of log2. Device or mapped host memory.
struct ExtraStates {
  const float* states = nullptr;
  const float* max_sum = nullptr;
  int per_row = 0;
};
inline constexpr int kMaxExtraStates = 2;

struct MergeStatesArgs {
  int sequences = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;

  // gather_attn's results; null states: only the extra ones.
  const float* states = nullptr;
  const float* max_sum = nullptr;
  SplitPlan plan;
  bool partial_results = false;  // an INT8 cache: one more result per row, after the plan's

  ExtraStates extra[kMaxExtraStates];

  // Optional (SparQ): out = alpha * attention + (1 - alpha) * v_sum / length.
  const float* alpha = nullptr;           // [sequences][heads]
  const float* v_sum = nullptr;           // [sequences][kv_heads][head_dim]
  const std::int32_t* lengths = nullptr;  // [sequences]
  // Optional (exact top-k without renormalization): weights are relative to this natural
  // log-sum-exp over all tokens, [sequences][heads], instead of the merged one.
  const float* normalizer_lse = nullptr;

  void* out = nullptr;            // [sequences][heads][head_dim], rows out_stride elements apart
  DType out_dtype = DType::kF32;  // F32, F16 or BF16
  std::int64_t out_stride = 0;
  float* lse = nullptr;  // optional, natural: [sequences][heads]
};

void merge_states(const MergeStatesArgs& args, StreamHandle stream);

// weights[list][i] = sum over the list's query heads of exp(logit - lse): each chosen token's
// softmax weight. Lists are per row, or per sequence (then over all heads, in ascending order).
// Entries at and beyond a list's count stay as they are.
struct TokenWeightsArgs {
  int sequences = 0;
  int heads = 0;
  int kv_heads = 0;
  const float* logits = nullptr;  // [row][query head][capacity], as gather_attn writes them
  const float* lse = nullptr;     // [sequences][heads]
  const std::int32_t* list_counts = nullptr;  // [list_rows]
  int list_rows = 0;                          // sequences, or sequences * kv_heads
  int capacity = 0;
  float* weights = nullptr;         // [list_rows][weights_stride]
  std::int64_t weights_stride = 0;  // at least every list's count
};
void token_weights(const TokenWeightsArgs& args, StreamHandle stream);

}  // namespace triphase::cuda
