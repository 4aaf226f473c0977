#pragma once

// SparQ's running sum of V (section 4). F32, device memory; the same arithmetic as on the CPU, bit
// for bit.

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/stream_handle.h"
#include "kernels/layer_memory.h"

namespace triphase::cuda {

// parts [count], in device memory; sums [v.cols]. beside: Launch::beside.
void sum_values(ConstMatrix v, const ValueRows* parts, std::int64_t count, std::int64_t layer,
                bool beside, StreamHandle stream);

}  // namespace triphase::cuda
