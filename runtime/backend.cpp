#include "runtime/backend.h"

#include "base/error.h"
#include "base/steady_seconds.h"
#include "kernels/cpu/ceilings.h"
#include "kernels/cpu/cpu_input_ops.h"
#include "kernels/cpu/cpu_kv_resolver.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/cpu_sparse_ops.h"
#include "memory/host_device.h"
#include "memory/transfer/host_transfer_engine.h"
#include "runtime/machine.h"
#include "runtime/refuse.h"

namespace triphase {

std::unique_ptr<Backend> Backend::open(std::string_view device, std::int64_t threads,
                                       bool deterministic) {
  if (device == "auto") device = gpu_count() > 0 ? "cuda:0" : "cpu";
  if (device == "cuda") device = "cuda:0";
  if (device != "cpu" && !device.starts_with("cuda:")) {
    refuse_option("--device", device, "auto, cpu or cuda:N");
  }
  std::unique_ptr<Backend> backend(new Backend);
  const std::int64_t count = threads > 0 ? threads : inspect_machine().usable_cores;
  backend->threads_ = std::make_unique<ThreadPool>(static_cast<int>(count));
  ThreadPool& pool = *backend->threads_;
  backend->machine_.threads = pool.threads();
  BackendParts& parts = backend->parts_;
  if (device == "cpu") {
    parts.device = std::make_unique<HostDevice>();
    parts.stream = parts.device->make_stream();
    parts.ops = make_cpu_ops(pool);
    parts.sparse_ops = make_cpu_sparse_ops(pool, *parts.device);
    parts.input_ops = make_cpu_input_ops(pool);
  } else {
    parts = open_gpu(device, deterministic, pool);
    backend->machine_.gpu = parts.machine;
    backend->host_ops_ = make_cpu_ops(pool);
  }
  return backend;
}

std::unique_ptr<Backend> Backend::open_for_job(const MachineOptions& options) {
  std::unique_ptr<Backend> backend = open(options.device, options.threads, options.deterministic);
  const std::optional<GpuMachine>& gpu = backend->machine().gpu;
  if (gpu && !gpu->gemm_library && !gpu->deterministic) {
    throw Error(ErrorRole::kResources, "E-DEV-LIBRARY", "cuBLASLt")
        .found(backend->products())
        .expected("CUDA's library for matrix products")
        .hint(
            "install CUDA 13 or `pip install nvidia-cublas`, or name the file by "
            "TRIPHASE_CUBLASLT; --deterministic does without it and without tensor cores");
  }
  return backend;
}

std::uint64_t Backend::default_memory() const {
  if (machine_.gpu) return machine_.gpu->memory;
  return default_device_budget(usable_host_memory());
}

void Backend::reserve(const OpsShape& shape) {
  // On the CPU callers' workspaces are all there is.
  if (parts_.reserve) parts_.reserve(shape);
}

std::unique_ptr<TransferEngine> Backend::make_transfers(const std::optional<EmulatedLink>& emulated,
                                                        int most_blocks) {
  require_no_emulated_link(machine_, emulated);
  if (!parts_.movers) return std::make_unique<HostTransferEngine>(emulated);
  return std::make_unique<StreamTransferEngine>(*parts_.device, *parts_.stream,
                                                parts_.movers(most_blocks));
}

std::unique_ptr<KvResolver> Backend::make_resolver(const ResolverShape& shape, Device& memory) {
  return parts_.resolver ? parts_.resolver(shape, memory) : make_cpu_kv_resolver(shape, memory);
}

Ceilings Backend::measure_ceilings(int runs) {
  if (parts_.measure_ceilings) return parts_.measure_ceilings(runs);
  return cpu::measure_ceilings(*threads_, *parts_.device, runs);
}

double Backend::now() const {
  return machine_.gpu ? steady_seconds() : cpu::now_seconds(*threads_);
}

void require_no_emulated_link(const ComputeMachine& machine,
                              const std::optional<EmulatedLink>& emulated) {
  if (!machine.gpu || !emulated) return;
  refuse_conflict("--emulate-link", "a GPU, whose own link is used", "--device cpu");
}

DType kv_dtype_on(const ComputeMachine& machine, std::optional<DType> asked, DType weights) {
  const DType dtype = asked.value_or(weights);
  if (!machine.gpu || dtype != DType::kF32) return dtype;
  if (!asked) return DType::kF16;
  refuse_option("--kv-dtype", "fp32 on a GPU", "auto, int8, fp16 or bf16",
                "--device cpu keeps KV in F32");
}

}  // namespace triphase
