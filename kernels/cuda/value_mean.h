#pragma once

// SparQ's running sum of V and what it puts in place of the tokens that were left out (section 4).
// F32, device memory; the same arithmetic as on the CPU, bit for bit.

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/stream_handle.h"
#include "kernels/layer_memory.h"

namespace triphase::cuda {

// parts [count], in device memory; sums [v.cols].
void sum_values(ConstMatrix v, const ValueRows* parts, std::int64_t count, std::int64_t layer,
                StreamHandle stream);

// rows [count] and alpha [count][heads], in device memory. out [T, heads * head_dim].
void reallocate(Matrix out, const ReallocatedRow* rows, std::int64_t count, std::int64_t heads,
                std::int64_t kv_heads, const float* alpha, std::int64_t layer, StreamHandle stream);

}  // namespace triphase::cuda
