#pragma once

// The CUDA implementation of InputOps: everything in device memory, queued on the call's stream.

#include <functional>
#include <memory>

#include "kernels/cuda/argument_ring.h"
#include "kernels/cuda/stream_handle.h"
#include "kernels/input_ops.h"

namespace triphase::cuda {

// `arguments` (make_cuda_ops): lists on their way to the device. `stream_handle`: the CUDA stream
// behind one of the device's streams. One stream at a time.
[[nodiscard]] std::unique_ptr<InputOps> make_cuda_input_ops(
    std::shared_ptr<ArgumentRing> arguments, std::function<StreamHandle(Stream&)> stream_handle);

}  // namespace triphase::cuda
