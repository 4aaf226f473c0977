#pragma once

// A token per row of logits: drawn, or a given one scored; with log-probabilities. Ops::sample says
// what, kernels/sample_math.h how far the CPU draws the same. One block per row, which only reads
// its own: results do not depend on other rows. All pointers are device memory.

#include <cstdint>

#include "kernels/cuda/stream_handle.h"
#include "kernels/sampling.h"

namespace triphase::cuda {

// SampleRow as the kernel reads it.
struct SampleTask {
  const std::uint32_t* seen = nullptr;  // bit i % 32 of word i / 32: the history holds token i;
                                        // null: no penalty
  double repetition_penalty = 1.0;
  double temperature = 0.0;
  double top_p = 1.0;
  double min_p = 0.0;
  std::uint64_t key = 0;
  std::uint64_t position = 0;
  std::int32_t vocab = 0;
  std::int32_t top_k = 0;
  std::int32_t alternatives = -1;
  std::int32_t score_token = -1;
};

struct SampleRows {
  const float* logits = nullptr;  // [rows][stride]
  std::int64_t stride = 0;
  const SampleTask* tasks = nullptr;  // [rows]
  std::int64_t rows = 0;
  SampleResult* results = nullptr;  // [rows]
};

void sample_rows(const SampleRows& call, StreamHandle stream);

}  // namespace triphase::cuda
