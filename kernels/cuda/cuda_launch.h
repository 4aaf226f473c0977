#pragma once

// A launch by CUDA's own calls. Throws E-DEV-CUDA, exit 7, with the kernel's name and sizes.

#include <cuda_runtime_api.h>

#include <array>
#include <string>

#include "base/launch.h"

namespace triphase::cuda {

// The arguments' addresses, as CUDA takes them. The launch must outlive it.
class LaunchAddresses {
 public:
  explicit LaunchAddresses(const Launch& launch);
  [[nodiscard]] void** data() { return addresses_.data(); }

 private:
  static constexpr std::size_t kMost = 32;
  std::array<void*, kMost> addresses_{};
};

// "grid 4 x 1 x 1, block 256 x 1 x 1, 0 bytes of shared memory"
[[nodiscard]] std::string sizes_of(const Launch& launch);

// A null stream is CUDA's default stream.
void run_launch(const Launch& launch, cudaStream_t stream);

}  // namespace triphase::cuda
