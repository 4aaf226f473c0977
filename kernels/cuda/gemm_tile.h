#pragma once

// y = x w^T + bias on CUDA cores, for where cuBLASLt is not installed and for odd shapes.
// Activations stay F32, so results are closer to float64 than a tensor-core product; the speed is
// at most that of F32 multiply-adds. An output's terms are summed in order of the column, whatever
// the rows beside it.

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/row_groups.h"
#include "kernels/cuda/stream_handle.h"
#include "kernels/ops.h"

namespace triphase::cuda {

// x [M, K] F32, w [N, K] F32/F16/BF16, bias [N] or null, y [M, N] F32, plus y's old value when
// `accumulate`. Rows that `limit` leaves out stay as they are.
void gemm_tile(ConstMatrix x, ConstMatrix w, const float* bias, bool accumulate, Matrix y,
               StreamHandle stream, const RowLimit& limit = {});

// See gemm_groups (kernels/cuda/gemm_rows.h), which checks the shapes.
void gemm_tile_groups(ConstMatrix x, ConstMatrix w, const RowGroups& groups, Matrix y,
                      StreamHandle stream);

}  // namespace triphase::cuda
