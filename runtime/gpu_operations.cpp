#include "runtime/gpu_operations.h"

#include <memory>
#include <utility>

#include "kernels/cuda/argument_ring.h"
#include "kernels/cuda/cuda_input_ops.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_sparse_ops.h"
#include "kernels/cuda/kv_mover.h"
#include "kernels/cuda/kv_resolver.h"
#include "kernels/cuda/random_fill.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase {

void add_operations(BackendParts& gpu, std::string name, std::unique_ptr<cuda::Gemm> gemm) {
  Device* device = gpu.device.get();
  PinnedHostDevice* host = gpu.host.get();
  gpu.machine.gemm_library = gemm != nullptr;
  cuda::CudaOpsSettings settings;
  settings.name = std::move(name);
  settings.machine = gpu.machine;
  settings.gemm = std::move(gemm);
  const auto arguments = std::make_shared<cuda::ArgumentRing>(
      *device, *host, static_cast<std::size_t>(kCudaArgumentRingBytes));
  auto ops = cuda::make_cuda_ops(*device, arguments, std::move(settings));
  auto sparse_ops = cuda::make_cuda_sparse_ops(*device, *host, arguments, gpu.machine);
  gpu.reserve = [ops = ops.get(), sparse_ops = sparse_ops.get(),
                 stream = gpu.stream.get()](const OpsShape& shape) {
    ops->reserve(shape, *stream);
    sparse_ops->reserve(shape, *stream);
  };
  gpu.ops = std::move(ops);
  gpu.sparse_ops = std::move(sparse_ops);
  gpu.input_ops = cuda::make_cuda_input_ops(arguments);
  gpu.random_fill = [](std::uint64_t key, float half_width, Matrix y, Stream& stream) {
    cuda::random_fill(key, half_width, y, stream.launches());
  };
  gpu.resolver = [host, arguments, stream = gpu.stream.get()](const ResolverShape& shape,
                                                              Device& memory) {
    return cuda::make_cuda_kv_resolver(shape, memory, *host, arguments, *stream);
  };
  gpu.movers = [device, host](int most_blocks) {
    const auto mover = [&] {
      return cuda::make_cuda_kv_mover(
          *device, *host,
          [host](const void* data, std::size_t bytes) { return host->is_pinned(data, bytes); },
          most_blocks);
    };
    return StreamTransferEngine::Movers{mover(), mover()};
  };
}

}  // namespace triphase
