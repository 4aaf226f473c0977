#pragma once

// cuBLASLt, loaded when a GPU run starts: the program neither links it (it is half a gigabyte) nor
// needs it. Not thread safe.

#include <memory>
#include <string>

#include "base/device.h"
#include "kernels/cuda/gemm.h"

namespace triphase::cuda {

// Looks for the library's file in TRIPHASE_CUBLASLT, then where the system and the CUDA toolkit
// keep it. Returns null and says why in `refusal` when there is none, or it does not start.
// `device` holds its workspace and must outlive the result.
[[nodiscard]] std::unique_ptr<Gemm> load_cublas_lt(Device& device, std::string& refusal);

}  // namespace triphase::cuda
