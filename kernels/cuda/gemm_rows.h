#pragma once

// y = x w^T + bias, where a row's bits depend on that row alone: every sum runs in the order of the
// columns, whatever the rows beside it. It projects hidden states (Phase III): K and V that were
// stored and those that are projected again must be the same numbers, and a library's product
// changes with the number of rows. On tensor cores with F32 sums where w has 16 bits, as the
// library's product has it: x is rounded to w's type. Elsewhere gemm_tile.

#include "base/dtype.h"
#include "kernels/cuda/row_groups.h"
#include "kernels/cuda/stream_handle.h"
#include "kernels/ops.h"

namespace triphase::cuda {

// x [M, K] F32, w [N, K] F32/F16/BF16, bias [N] or null, y [M, N] F32. Rows that `limit` leaves out
// stay as they are; their tiles end at once.
void gemm_rows(ConstMatrix x, ConstMatrix w, const float* bias, const RowLimit& limit, Matrix y,
               StreamHandle stream);

// y [M, N or, gated, N / 2] F32 = row by row x times the weights w [groups * N, K] of the row's
// group. A row's bits depend on that row of x and on its group alone. Rows that are in no tile stay
// as they are. Tiles of at most 64 rows; up to 16 are multiplied in blocks of so many.
void gemm_groups(ConstMatrix x, ConstMatrix w, const RowGroups& groups, Matrix y,
                 StreamHandle stream);

}  // namespace triphase::cuda
