#pragma once

// Small instances of the benchmarked operations, run on the backend and compared with float64
// loops. Throw E-INT-CHECK when a result is beyond the error that its arithmetic allows.

#include "runtime/bench/measure.h"

namespace triphase::bench {

void check_linear(Backend& backend, DType dtype);
void check_attention(Backend& backend, std::int64_t heads, std::int64_t kv_heads,
                     std::int64_t head_dim, DType dtype);

}  // namespace triphase::bench
