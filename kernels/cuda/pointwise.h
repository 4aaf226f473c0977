#pragma once

// The elementwise operations of kernels/ops.h on a GPU. Matrices and index arrays lie in device
// memory; activations are F32, tables F32, F16 or BF16. Shapes as in kernels/ops.h; they are
// checked, index values are not (the caller has them on the host). Work is queued on `stream`.

#include <cstdint>

#include "base/activation.h"
#include "base/dtype.h"
#include "kernels/cuda/stream_handle.h"
#include "kernels/sampling.h"

namespace triphase::cuda {

// y[t, :] = scale * table[rows[t], :], plus y's old value when `accumulate`. A row ~i is the token
// of drawn[i], where there are such.
void gather_table(const std::int32_t* rows, ConstMatrix table, float scale, bool accumulate,
                  Matrix y, StreamHandle stream, const SampleResult* drawn = nullptr);

// y[t, :] = sum over i < n = terms, ascending, of factors[t * n + i] * x[rows[t * n + i], :], plus
// y's old value when `accumulate`.
void sum_rows(ConstMatrix x, const std::int32_t* rows, const float* factors, std::int64_t terms,
              bool accumulate, Matrix y, StreamHandle stream);

void rope(Matrix x, std::int64_t heads, std::int64_t head_dim, std::int64_t rotary_dim,
          ConstMatrix cos_sin, StreamHandle stream);

// y = act(gate) * up; up empty: y = act(gate). y may alias gate; else it may be F16 or BF16
// (nearest even), and columns from gate.cols up to y.cols are zeroed.
void activate(Activation activation, ConstMatrix gate, ConstMatrix up, Matrix y,
              StreamHandle stream);

// y = cap * tanh(y / cap).
void soft_cap(float cap, Matrix y, StreamHandle stream);

// y = x rounded to y's type (F16 or BF16, nearest even); columns from x.cols up to y.cols are
// zeroed.
void convert(ConstMatrix x, Matrix y, StreamHandle stream);

}  // namespace triphase::cuda
