#pragma once

// The CUDA backend's operations over some device that runs them: CUDA's or the emulated one.

#include <memory>
#include <string>

#include "kernels/cuda/gemm.h"
#include "runtime/gpu.h"

namespace triphase {

// Fills the operations of a GPU whose device, host memory, stream and machine are there. `gemm`
// null: products by the kernels' own tiles.
void add_operations(BackendParts& gpu, std::string name, std::unique_ptr<cuda::Gemm> gemm);

}  // namespace triphase
