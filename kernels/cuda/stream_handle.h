#pragma once

// cudaStream_t without a CUDA header, so that wrappers' headers stay plain C++.

struct CUstream_st;

namespace triphase::cuda {

using StreamHandle = CUstream_st*;

}  // namespace triphase::cuda
