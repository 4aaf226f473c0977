#pragma once

// The CUDA implementation of InputOps: everything in device memory, queued on the call's stream.

#include <memory>

#include "kernels/cuda/argument_ring.h"
#include "kernels/input_ops.h"

namespace triphase::cuda {

// `arguments` (make_cuda_ops): lists on their way to the device. One stream at a time.
[[nodiscard]] std::unique_ptr<InputOps> make_cuda_input_ops(
    std::shared_ptr<ArgumentRing> arguments);

}  // namespace triphase::cuda
