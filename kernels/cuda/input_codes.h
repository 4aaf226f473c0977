#pragma once

// INT8 codes of hidden states by rows (kernels/input_ops.h), bit for bit as on the CPU. Device
// memory; a block per row.

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

// x [T, C] F32; codes [T][C] and scales [T] without gaps.
void quantize_inputs(ConstMatrix x, std::int8_t* codes, float* scales, StreamHandle stream);
void dequantize_inputs(const std::int8_t* codes, const float* scales, Matrix x,
                       StreamHandle stream);

}  // namespace triphase::cuda
