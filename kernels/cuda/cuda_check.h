#pragma once

// Results of CUDA runtime calls as errors that say which call failed, on what, and CUDA's own text.
// A failure that outlives the call (illegal address, ECC, launch timeout) is a device failure, exit
// 7; a refused allocation or a missing device is a matter of resources, exit 5.

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

namespace triphase {

// `call` is the function or kernel, `about` its sizes ("4096 bytes to the device", "rows 64, k
// 128").
[[noreturn]] void throw_cuda_error(cudaError_t status, std::string_view call,
                                   std::string_view about);

inline void check_cuda(cudaError_t status, std::string_view call, std::string_view about = {}) {
  if (status != cudaSuccess) [[unlikely]] {
    throw_cuda_error(status, call, about);
  }
}

// After a launch: a bad configuration shows here, a fault inside the kernel at the next
// synchronization.
template <class About>
void check_launch(std::string_view kernel, const About& about) {
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) [[unlikely]] {
    throw_cuda_error(status, kernel, about());
  }
}

}  // namespace triphase
