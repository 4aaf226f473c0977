#pragma once

// cuBLASLt, loaded when a GPU run starts: the program neither links it (it is half a gigabyte) nor
// needs it. Not thread safe.

#include <memory>
#include <string>

#include "base/device.h"
#include "kernels/cuda/gemm.h"

namespace triphase::cuda {

// Looks for the library's file as library_search.h says; TRIPHASE_CUBLASLT names one. Returns null
// and says in `refusal` what was tried when there is none, or why it does not start.
// `device` holds its workspace and must outlive the result.
[[nodiscard]] std::unique_ptr<Gemm> load_cublas_lt(Device& device, std::string& refusal);

}  // namespace triphase::cuda
