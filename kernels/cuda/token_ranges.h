#pragma once

// Lists of tokens that are a formula of the context's length.

#include <cstdint>

#include "kernels/cuda/stream_handle.h"
#include "kernels/sparse_ops.h"

namespace triphase::cuda {

// Row i of indices [rows][capacity] gets the tokens of ranges[i], its count in counts [rows]. All
// pointers are device memory.
void write_ranges(const TokenRanges* ranges, std::int64_t rows, std::int32_t* indices,
                  std::int64_t capacity, std::int32_t* counts, StreamHandle stream);

}  // namespace triphase::cuda
