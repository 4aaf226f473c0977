#pragma once

// SparQ's running sum of V and what it puts in place of the tokens that were left out (section 4).
// F32, device memory; the same arithmetic as on the CPU, bit for bit.

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

// Rows [first_row, first_row + rows) of V and the sums [v.cols] that they are added to, ascending.
struct SummedRows {
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  float* sums = nullptr;
};
// parts [count], in device memory.
void sum_values(ConstMatrix v, const SummedRows* parts, std::int64_t count, StreamHandle stream);

// Row `row` of out: out = alpha out + (1 - alpha) share sums for each query head; sums
// [kv_head][head_dim], null: out = alpha out.
struct MeanRow {
  std::int64_t row = 0;
  const float* sums = nullptr;
  float share = 0.0F;  // 1 / tokens that were summed
};
// rows [count] and alpha [count][heads], in device memory. out [T, heads * head_dim].
void reallocate(Matrix out, const MeanRow* rows, std::int64_t count, std::int64_t heads,
                std::int64_t kv_heads, const float* alpha, StreamHandle stream);

}  // namespace triphase::cuda
