#pragma once

// SparQ's running sum of V and what it puts in place of the tokens that were left out (section 4).
// F32, device memory; the same arithmetic as on the CPU, bit for bit.

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

// sums[c] += v[t, c], rows ascending. sums [v.cols].
void sum_values(ConstMatrix v, float* sums, StreamHandle stream);

// out [1, heads * head_dim]: out = alpha out + (1 - alpha) sums / tokens for each query head; sums
// [kv_head][head_dim], null: out = alpha out. alpha [heads].
void reallocate(Matrix out, std::int64_t heads, std::int64_t kv_heads, const float* alpha,
                const float* sums, std::int64_t tokens, StreamHandle stream);

}  // namespace triphase::cuda
