#pragma once

// Kernels whose only purpose is their speed: what a GPU reads and multiplies at most.

#include <cstddef>

#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

// Reads `bytes` (a multiple of 16) at `data` and writes a few words that depend on them: sink
// [ceiling_blocks].
void read_all(const void* data, std::size_t bytes, int blocks, float* sink, StreamHandle stream);

// Every thread of `blocks` blocks does `rounds` rounds of multiply-adds in registers.
void multiply_add(int rounds, int blocks, float* sink, StreamHandle stream);
// Operations of one round of one block, two per multiply-add.
[[nodiscard]] double multiply_add_operations();

}  // namespace triphase::cuda
