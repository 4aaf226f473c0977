#include "kernels/cuda/cuda_launch.h"

#include <fmt/format.h>

#include "base/error.h"
#include "kernels/cuda/cuda_check.h"

namespace triphase::cuda {

LaunchAddresses::LaunchAddresses(const Launch& launch) {
  TRIPHASE_CHECK(launch.offsets.size() <= kMost, "a kernel with so many parameters");
  for (std::size_t at = 0; at < launch.offsets.size(); ++at) {
    // CUDA only reads there.
    addresses_[at] = const_cast<std::byte*>(launch.arguments.data() + launch.offsets[at]);
  }
}

std::string sizes_of(const Launch& launch) {
  return fmt::format("grid {}, block {}, {} bytes of shared memory", fmt::join(launch.grid, " x "),
                     fmt::join(launch.block, " x "), launch.shared_bytes);
}

void run_launch(const Launch& launch, cudaStream_t stream) {
  if (launch.call != nullptr) {
    launch.call(launch.arguments.data(), stream);
    return;
  }
  const dim3 grid(launch.grid[0], launch.grid[1], launch.grid[2]);
  const dim3 block(launch.block[0], launch.block[1], launch.block[2]);
  LaunchAddresses addresses(launch);
  const cudaError_t status =
      cudaLaunchKernel(launch.kernel, grid, block, addresses.data(), launch.shared_bytes, stream);
  if (status != cudaSuccess) throw_cuda_error(status, launch.name, sizes_of(launch));
}

}  // namespace triphase::cuda
