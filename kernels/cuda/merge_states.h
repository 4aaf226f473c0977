#pragma once

// Joins the partial attention states that gather_attn left into outputs (log-sum-exp merge). Empty
// states (sum 0) count for nothing; a query that saw no token at all gives zeros, and a share of 0.
// Order of summation: parts ascending, the partial block.

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
  // Rows have many parts: several warps share each, and add other states together first. A row's
  // bits depend on this and its number of parts alone.
  bool long_rows = false;

  const float* sinks = nullptr;  // optional: [heads] (attention_sink.h)
  // Optional: Selection::alpha [sequences][heads], and beside it means [sequences] of a layer.
  const float* alpha = nullptr;
  const ValueMean* means = nullptr;
  std::int64_t layer = 0;

  Matrix out;                // F32, F16 or BF16: [sequences, heads * head_dim]
  float* softmax = nullptr;  // optional: AttendedScores::softmax [sequences][heads]
};

void merge_states(const MergeStatesArgs& args, StreamHandle stream);

}  // namespace triphase::cuda
