#pragma once

// The CUDA implementation of InputOps: everything in device memory, queued on the call's stream.

#include <functional>
#include <memory>

#include "kernels/cuda/stream_handle.h"
#include "kernels/input_ops.h"

namespace triphase::cuda {

// `device` and `host` hold lists on their way to the device; both must outlive the result.
// `stream_handle`: the CUDA stream behind one of the device's streams. One stream at a time.
[[nodiscard]] std::unique_ptr<InputOps> make_cuda_input_ops(
    Device& device, Device& host, std::function<StreamHandle(Stream&)> stream_handle);

}  // namespace triphase::cuda
