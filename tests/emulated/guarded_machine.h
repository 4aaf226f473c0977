#pragma once

// The CUDA backend's operations on the emulator, whose device memory is closed to the host.

#include <memory>
#include <stdexcept>

#include "kernels/cuda/argument_ring.h"
#include "kernels/cuda/cuda_input_ops.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_sparse_ops.h"
#include "kernels/sizing/cuda_workspace.h"
#include "memory/pinned_host.h"
#include "tests/emulated/emulated_gpu.h"
#include "tests/emulated/guarded_memory.h"
#include "tests/emulated/seam.h"

namespace triphase::cuda {

// Refuses copies that are not asynchronous on a GPU: the host's side must be pinned.
class PinnedCopies final : public GuardedDevice {
 public:
  explicit PinnedCopies(const PinnedHostDevice& pinned) : pinned_(&pinned) {}
  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    check(to, bytes);
    if (!pageable_sources_) check(from, bytes);
    GuardedDevice::copy(to, from, bytes, stream);
  }
  // For uploads that happen once and wait.
  void allow_pageable_sources() { pageable_sources_ = true; }

 private:
  void check(const void* side, std::size_t bytes) const {
    if (GuardedMemory::instance().is_device(side) || pinned_->is_pinned(side, bytes)) return;
    if (is_pinned(side, bytes)) return;
    throw std::logic_error("a copy of " + std::to_string(bytes) + " bytes of pageable memory");
  }

  const PinnedHostDevice* pinned_;
  bool pageable_sources_ = false;
};

inline HostPinning pinning_of_tests() {
  return {[](void*, std::size_t) { return std::string(); }, [](void*) {}};
}

struct GuardedMachine {
  explicit GuardedMachine(GpuMachine machine = emulated_gpu(),
                          std::unique_ptr<Gemm> gemm = nullptr) {
    emulated::set_watch(&GuardedMemory::instance());
    CudaOpsSettings settings;
    settings.name = "emulated";
    settings.machine = machine;
    settings.gemm = std::move(gemm);
    ops = make_cuda_ops(copies, arguments, std::move(settings));
    sparse = make_cuda_sparse_ops(copies, pinned, arguments, machine);
    inputs = make_cuda_input_ops(arguments);
    stream = device.make_stream();
  }
  [[nodiscard]] Seam seam() { return {*ops, *sparse, device, *stream}; }
  GuardedDevice device;  // the tests' own copies may be of any memory
  PinnedHostDevice pinned{device, pinning_of_tests(), 1};
  PinnedCopies copies{pinned};
  std::shared_ptr<ArgumentRing> arguments = std::make_shared<ArgumentRing>(
      copies, pinned, static_cast<std::size_t>(kCudaArgumentRingBytes));
  std::unique_ptr<CudaOps> ops;
  std::unique_ptr<CudaSparseOps> sparse;
  std::unique_ptr<InputOps> inputs;
  std::unique_ptr<Stream> stream;
};

}  // namespace triphase::cuda
