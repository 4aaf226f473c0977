#pragma once

// What a device brings to a Backend. Which file defines these functions decides which GPUs a
// program knows: gpu_cuda.cpp, gpu_none.cpp, or that of the emulated device beside the tests.

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/thread_pool.h"
#include "kernels/ceilings.h"
#include "kernels/input_ops.h"
#include "kernels/kv_resolver.h"
#include "kernels/ops.h"
#include "kernels/random_values.h"
#include "kernels/sizing/ops_scratch.h"
#include "kernels/sizing/resolver_memory.h"
#include "kernels/sparse_ops.h"
#include "memory/pinned_host.h"
#include "memory/transfer/stream_transfer_engine.h"

namespace triphase {

// The CPU has a device, its stream and the three kinds of operations; the rest is empty there.
struct BackendParts {
  std::unique_ptr<Device> device;
  std::unique_ptr<PinnedHostDevice> host;  // for large blocks
  std::unique_ptr<Stream> stream;
  GpuMachine machine;
  std::string products;           // Backend::products
  std::string warpgroup_problem;  // Backend::warpgroup_problem
  std::unique_ptr<Ops> ops;
  std::unique_ptr<SparseOps> sparse_ops;
  std::unique_ptr<InputOps> input_ops;
  RandomFill random_fill;
  std::function<void(const OpsShape&)> reserve;   // Backend::reserve
  std::function<Ceilings(int)> measure_ceilings;  // Backend::measure_ceilings
  // Backend::make_resolver.
  std::function<std::unique_ptr<KvResolver>(const ResolverShape&, Device& memory)> resolver;
  // Movers of one transfer engine; `most_blocks` as Backend::make_transfers has it.
  std::function<StreamTransferEngine::Movers(int most_blocks)> movers;
};

// GPUs of this machine that the program can use: "cuda:0" to "cuda:<count - 1>".
[[nodiscard]] int gpu_count();
// What keeps the program from GPUs whose driver is there: that it is too old; empty: nothing.
[[nodiscard]] std::string gpu_problem();
// Whether the program was built for GPUs.
[[nodiscard]] bool built_with_gpu();
// `name`: "cuda:N". `deterministic`: as GpuMachine has it; no library is looked for then. Throws
// E-DEV-NONE (exit 5) for a device that this build or machine lacks.
[[nodiscard]] BackendParts open_gpu(std::string_view name, bool deterministic, ThreadPool& threads);

}  // namespace triphase
