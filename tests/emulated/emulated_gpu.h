#pragma once

// The machine that the emulator stands for.

#include "kernels/sizing/compute_machine.h"

namespace triphase::cuda {

inline GpuMachine emulated_gpu(bool deterministic = false) {
  return {.multiprocessors = 2,
          .shared_bytes_per_multiprocessor = 228 << 10,
          .shared_bytes_per_block = 227 << 10,
          .deterministic = deterministic,
          .warpgroups = true};
}

}  // namespace triphase::cuda
