#include <fmt/format.h>

#include <charconv>
#include <string>

#include "base/gpu_errors.h"
#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/warpgroup_check.h"
#include "memory/cuda/cuda_ceilings.h"
#include "memory/cuda/cuda_device.h"
#include "runtime/gpu.h"
#include "runtime/gpu_operations.h"
#include "runtime/refuse.h"

namespace triphase {

int gpu_count() { return cuda_device_count(); }

std::string gpu_problem() { return cuda_problem(); }

bool built_with_gpu() { return true; }

BackendParts open_gpu(std::string_view name, bool deterministic, ThreadPool& threads) {
  constexpr std::string_view kPrefix = "cuda:";
  int index = 0;
  const char* end = name.data() + name.size();
  const auto [parsed, problem] = std::from_chars(name.data() + kPrefix.size(), end, index);
  if (problem != std::errc() || parsed != end) {
    refuse_option("--device", name, "auto, cpu or cuda:N");
  }
  auto device = std::make_unique<CudaDevice>(index);
  CudaDevice* cuda = device.get();
  const CudaFacts& facts = cuda->facts();
  BackendParts gpu;
  gpu.device = std::move(device);
  gpu.host = std::make_unique<PinnedHostDevice>(*cuda, cuda_host_pinning(), threads.threads());
  gpu.stream = gpu.device->make_stream();
  std::string refusal;
  std::unique_ptr<cuda::Gemm> gemm;
  if (!deterministic) gemm = cuda::load_cublas_lt(*cuda, refusal);
  gpu.machine = {.multiprocessors = facts.multiprocessors,
                 .shared_bytes_per_multiprocessor =
                     static_cast<std::int64_t>(facts.shared_bytes_per_multiprocessor),
                 .shared_bytes_per_block = static_cast<std::int64_t>(facts.shared_bytes_per_block),
                 .deterministic = deterministic};
  constexpr int kHopper = 90;
  if (facts.capability == kHopper) {
    gpu.warpgroup_problem = cuda::warpgroup_problem(gpu.machine, *cuda, *gpu.stream);
    gpu.machine.warpgroups = gpu.warpgroup_problem.empty();
  }
  // After the first launches, with whose modules some of it goes.
  gpu.machine.memory = usable_gpu_memory(cuda->free_bytes());
  gpu.products = gemm ? gemm->origin() : refusal;
  const std::string_view products = deterministic ? "deterministic"
                                    : gemm        ? gemm->name()
                                                  : "no cuBLASLt";
  add_operations(gpu, fmt::format("cuda:{} ({}, {})", index, facts.name, products),
                 std::move(gemm));
  gpu.measure_ceilings = [cuda](int runs) { return cuda::measure_ceilings(*cuda, runs); };
  return gpu;
}

}  // namespace triphase
