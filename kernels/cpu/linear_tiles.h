#pragma once

// The matrix product by weights in BF16 on processors with AMX, whose tiles multiply BF16 and add
// in F32. An F32 is the sum of three BF16 numbers, so x is not rounded; but tiles take numbers
// below 2^-126, pieces too, as 0, and an infinite weight gives NaN.

#include "base/thread_pool.h"
#include "kernels/ops.h"

namespace triphase::cpu {

// Whether processor and operating system have such tiles. Asks the system for their use.
[[nodiscard]] bool has_bf16_tiles();

// See Ops::linear; w is BF16. Requires has_bf16_tiles(). A row of y depends on its row of x
// alone.
void linear_by_tiles(ThreadPool& pool, ConstMatrix x, ConstMatrix w, const float* bias,
                     bool accumulate, Matrix y);

}  // namespace triphase::cpu
