#pragma once

// The processor that computes, as far as sizes of scratch depend on it.

#include <cstdint>
#include <optional>

namespace triphase {

struct GpuMachine {
  std::int64_t multiprocessors = 1;
  std::int64_t shared_bytes_per_multiprocessor = 0;
  std::int64_t shared_bytes_per_block = 0;  // the most that a block may ask for
  std::uint64_t memory = 0;                 // bytes that a job may take
  bool deterministic = false;               // a row's bits do not depend on its batch
  bool gemm_library = false;                // cuBLASLt is loaded and holds its workspace
  bool warpgroups = false;                  // kernels may use Hopper's warpgroup products
};

struct ComputeMachine {
  int threads = 1;
  std::optional<GpuMachine> gpu;  // none: the CPU computes, with `threads`
};

}  // namespace triphase
