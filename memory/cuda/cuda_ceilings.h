#pragma once

#include "kernels/ceilings.h"
#include "memory/cuda/cuda_device.h"

namespace triphase::cuda {

// The ceilings of one GPU, with events around single kernels and copies over 2 GiB (or half of what
// is free, if less); the best of `runs`.
[[nodiscard]] Ceilings measure_ceilings(CudaDevice& device, int runs);

}  // namespace triphase::cuda
