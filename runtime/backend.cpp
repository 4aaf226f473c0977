#include "runtime/backend.h"

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <optional>

#include "base/error.h"
#include "kernels/cpu/ceilings.h"
#include "kernels/cpu/cpu_input_ops.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/cpu_sparse_ops.h"
#include "memory/host_device.h"
#include "runtime/machine.h"

#ifdef TRIPHASE_WITH_CUDA
#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/cuda_input_ops.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_sparse_ops.h"
#include "memory/cuda/cuda_ceilings.h"
#include "memory/cuda/cuda_device.h"
#endif

namespace triphase {
namespace {

// N of "cuda:N" ("cuda" is the first); nothing when `device` is not a CUDA device's name.
std::optional<int> cuda_index(std::string_view device) {
  if (device == "cuda") return 0;
  constexpr std::string_view kPrefix = "cuda:";
  if (!device.starts_with(kPrefix)) return std::nullopt;
  device.remove_prefix(kPrefix.size());
  int index = 0;
  const auto [end, problem] = std::from_chars(device.data(), device.data() + device.size(), index);
  if (problem != std::errc() || end != device.data() + device.size() || index < 0) {
    return std::nullopt;
  }
  return index;
}

}  // namespace

std::unique_ptr<Backend> Backend::open(std::string_view device, std::int64_t threads) {
  const std::optional<int> cuda = cuda_index(device);
  if (!cuda && device != "auto" && device != "cpu") {
    throw Error(ErrorRole::kUsage, "E-CLI-OPTION", "--device")
        .found(device)
        .expected("auto, cpu or cuda:N");
  }
  std::unique_ptr<Backend> backend(new Backend);
  const std::int64_t count = threads > 0 ? threads : inspect_machine().usable_cores;
  backend->threads_ = std::make_unique<ThreadPool>(static_cast<int>(count));
  backend->machine_.threads = backend->threads_->threads();
  if (cuda) {
    backend->use_cuda(*cuda);
  } else {
    backend->use_cpu();
  }
  return backend;
}

void Backend::use_cpu() {
  device_ = std::make_unique<HostDevice>();
  host_ = std::make_unique<HostDevice>();
  ops_ = make_cpu_ops(*threads_);
  sparse_ops_ = make_cpu_sparse_ops(*threads_, *device_);
  input_ops_ = make_cpu_input_ops(*threads_);
  stream_ = device_->make_stream();
  reserve_ = [](const OpsShape&) {};  // callers' workspaces are all there is
  measure_ceilings_ = [this](int runs) { return cpu::measure_ceilings(*threads_, *device_, runs); };
  now_ = [this] { return cpu::now_seconds(*threads_); };
}

#ifdef TRIPHASE_WITH_CUDA
bool Backend::built_with_cuda() { return true; }

void Backend::use_cuda(int index) {
  auto device = std::make_unique<CudaDevice>(index);
  CudaDevice* cuda = device.get();
  device_ = std::move(device);
  auto host = std::make_unique<PinnedHostDevice>(*cuda, cuda_host_pinning(), threads_->threads());
  const PinnedHostDevice* pinned = host.get();
  host_ = std::move(host);
  cuda::CudaOpsSettings settings;
  machine_.gpu = GpuMachine{
      .multiprocessors = cuda->facts().multiprocessors,
      .shared_bytes_per_multiprocessor =
          static_cast<std::int64_t>(cuda->facts().shared_bytes_per_multiprocessor),
      .shared_bytes_per_block = static_cast<std::int64_t>(cuda->facts().shared_bytes_per_block)};
  std::string refusal;
  settings.gemm = cuda::load_cublas_lt(*cuda, refusal);
  machine_.gpu->gemm_library = settings.gemm != nullptr;
  settings.machine = *machine_.gpu;
  settings.stream_handle = [](Stream& stream) { return cuda_stream(stream); };
  settings.is_pinned = [pinned](const void* data, std::size_t bytes) {
    return pinned->is_pinned(data, bytes);
  };
  settings.name = fmt::format(
      "cuda:{} ({}, {})", index, cuda->facts().name,
      settings.gemm ? std::string(settings.gemm->name()) : fmt::format("no cuBLASLt: {}", refusal));
  auto ops = cuda::make_cuda_ops(*device_, *host_, std::move(settings));
  auto sparse_ops = cuda::make_cuda_sparse_ops(
      *device_, *host_, {.machine = *machine_.gpu, .stream_handle = [](Stream& stream) {
                           return cuda_stream(stream);
                         }});
  host_ops_ = make_cpu_ops(*threads_);
  stream_ = device_->make_stream();
  reserve_ = [this, ops = ops.get(), sparse_ops = sparse_ops.get()](const OpsShape& shape) {
    ops->reserve(shape, *stream_);
    sparse_ops->reserve(shape, *stream_);
  };
  ops_ = std::move(ops);
  sparse_ops_ = std::move(sparse_ops);
  input_ops_ = cuda::make_cuda_input_ops(*device_, *host_,
                                         [](Stream& stream) { return cuda_stream(stream); });
  measure_ceilings_ = [cuda](int runs) { return cuda::measure_ceilings(*cuda, runs); };
  now_ = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
}
#else
bool Backend::built_with_cuda() { return false; }

void Backend::use_cuda(int index) {
  throw Error(ErrorRole::kResources, "E-DEV-NONE", "--device")
      .found(fmt::format("cuda:{}", index))
      .expected("auto or cpu: this program was built without CUDA");
}
#endif

}  // namespace triphase
