#pragma once

// Joins the partial attention states that gather_attn left into outputs (log-sum-exp merge), and
// turns logits into softmax weights. Empty states (sum 0) count for nothing; a query that saw no
// token at all gives zeros and lse -inf. Order of summation: parts ascending, the partial block.

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/plan_splits.h"
#include "kernels/cuda/stream_handle.h"
#include "kernels/layer_memory.h"

namespace triphase::cuda {

struct MergeStatesArgs {
  int sequences = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;

  // gather_attn's results.
  const float* states = nullptr;
  const float* max_sum = nullptr;
  SplitPlan plan;
  bool partial_results = false;  // an INT8 cache: one more result per row, after the plan's

  const float* sinks = nullptr;  // optional: [heads] (attention_sink.h)
  // Optional: Selection::alpha [sequences][heads], and beside it means [sequences] of a layer.
  const float* alpha = nullptr;
  const ValueMean* means = nullptr;
  std::int64_t layer = 0;

  Matrix out;            // F32, F16 or BF16: [sequences, heads * head_dim]
  float* lse = nullptr;  // optional, natural: [sequences][heads]
};

void merge_states(const MergeStatesArgs& args, StreamHandle stream);

// weights[list][i] = sum over the list's query heads of exp(logit - lse): each chosen token's
// softmax weight. Lists are per row, or per sequence (then over all heads). The order of summation
// depends on the number of heads alone. Entries at and beyond a list's count stay as they are.
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
