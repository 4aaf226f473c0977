#pragma once

// Row-wise normalizations and reductions over logits. F32, device memory, one block per row; a
// row's bits do not depend on other rows. Shapes as in kernels/ops.h.

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

void rms_norm(ConstMatrix x, const float* weight, float weight_offset, float eps, Matrix y,
              StreamHandle stream);
void layer_norm(ConstMatrix x, const float* weight, const float* bias, float eps, Matrix y,
                StreamHandle stream);

// For each row of logits: the index of its largest element (smallest index of equals; -1 when the
// row holds NaN or +infinity), that element, and log(sum exp(row)), the normalizer of its
// log-probabilities. top [rows], value [rows], log_sum [rows]; the last two may be null.
void top_logit(ConstMatrix logits, std::int32_t* top, float* value, float* log_sum,
               StreamHandle stream);

}  // namespace triphase::cuda
