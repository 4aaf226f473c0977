#pragma once

// The CUDA backend's operations on the emulator, whose device memory is closed to the host.

#include <memory>

#include "kernels/cuda/cuda_input_ops.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_sparse_ops.h"
#include "tests/emulated/guarded_memory.h"

namespace triphase::cuda {

inline GpuMachine emulated_gpu(bool deterministic = false) {
  return {.multiprocessors = 2,
          .shared_bytes_per_multiprocessor = 228 << 10,
          .shared_bytes_per_block = 227 << 10,
          .deterministic = deterministic};
}

struct GuardedMachine {
  explicit GuardedMachine(GpuMachine machine = emulated_gpu(),
                          std::unique_ptr<Gemm> gemm = nullptr) {
    emulated::set_watch(&GuardedMemory::instance());
    CudaOpsSettings settings;
    settings.name = "emulated";
    settings.machine = machine;
    settings.stream_handle = [](Stream&) { return StreamHandle{}; };
    settings.gemm = std::move(gemm);
    ops = make_cuda_ops(device, pinned, std::move(settings));
    sparse = make_cuda_sparse_ops(
        device, pinned,
        {.machine = machine, .stream_handle = [](Stream&) { return StreamHandle{}; }});
    inputs = make_cuda_input_ops(device, pinned, [](Stream&) { return StreamHandle{}; });
    stream = device.make_stream();
  }
  GuardedDevice device;
  HostDevice pinned;
  std::unique_ptr<CudaOps> ops;
  std::unique_ptr<CudaSparseOps> sparse;
  std::unique_ptr<InputOps> inputs;
  std::unique_ptr<Stream> stream;
};

}  // namespace triphase::cuda
