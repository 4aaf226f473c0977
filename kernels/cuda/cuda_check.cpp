#include "kernels/cuda/cuda_check.h"

#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "base/gpu_errors.h"

namespace triphase {
namespace {

// CUDA says of a missing driver too that it is insufficient.
std::optional<Error> error_of_driver() {
  int driver = 0;
  int runtime = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) runtime = CUDART_VERSION;
  return driver_error(driver, runtime);
}

bool is_missing_device(cudaError_t status) {
  return status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver ||
         status == cudaErrorInvalidDevice || status == cudaErrorSystemNotReady ||
         status == cudaErrorSystemDriverMismatch || status == cudaErrorCompatNotSupportedOnDevice ||
         status == cudaErrorDevicesUnavailable || status == cudaErrorStubLibrary ||
         status == cudaErrorNoKernelImageForDevice || status == cudaErrorUnsupportedPtxVersion;
}

}  // namespace

void throw_cuda_error(cudaError_t status, std::string_view call, std::string_view about) {
  const std::string found = fmt::format("{}{}{}: {} ({})", call, about.empty() ? "" : ", ", about,
                                        cudaGetErrorString(status), cudaGetErrorName(status));
  (void)cudaGetLastError();  // what is not sticky must not turn up again at the next launch
  if (is_missing_device(status)) {
    if (const std::optional<Error> driver = error_of_driver()) throw Error(*driver);
    throw Error(ErrorRole::kResources, "E-DEV-NONE", "GPU")
        .found(found)
        .expected("a CUDA device and a driver that this build can use")
        .hint("--device=cpu needs neither; triphase doctor shows what is here");
  }
  if (status == cudaErrorMemoryAllocation) {
    throw Error(ErrorRole::kResources, "E-MEM-ALLOC", "GPU memory")
        .found(found)
        .expected("memory for the weights and the KV cache")
        .hint("lower --device-memory or --batch-size, or free the GPU");
  }
  throw Error(ErrorRole::kDevice, "E-DEV-CUDA", "GPU")
      .found(found)
      .hint("finished records are kept; the same command resumes");
}

}  // namespace triphase
