#pragma once

// Random weights made where they lie.

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

// See RandomFill (kernels/random_values.h). y is F32, F16 or BF16, in device memory.
void random_fill(std::uint64_t key, float half_width, Matrix y, StreamHandle stream);

}  // namespace triphase::cuda
