#pragma once

// Row-wise normalizations in device memory, one block per row, or per head of a row; a row's bits
// do not depend on other rows. x F32; y F32, or rounded to F16 or BF16 (nearest even); columns from
// x.cols up to y.cols are zeroed. Shapes as in kernels/ops.h.

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

void rms_norm(ConstMatrix x, const float* weight, float weight_offset, float eps, Matrix y,
              StreamHandle stream);
// y [T, C] F32 += rms_norm(x).
void add_rms_norm(ConstMatrix x, const float* weight, float weight_offset, float eps, Matrix y,
                  StreamHandle stream);
void head_norm(Matrix x, std::int64_t heads, const float* weight, float weight_offset, float eps,
               StreamHandle stream);
void layer_norm(ConstMatrix x, const float* weight, const float* bias, float eps, Matrix y,
                StreamHandle stream);

}  // namespace triphase::cuda
