#pragma once

// cuBLASLt, loaded when a GPU run starts: the program does not link it (it is half a gigabyte), and
// deterministic runs do without. Not thread safe.

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
