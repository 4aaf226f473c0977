#pragma once

// The device a run computes on, with everything that belongs to it: memory, arithmetic, threads,
// the compute stream, the link. Owned by the command.

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/thread_pool.h"
#include "memory/transfer/transfer_engine.h"
#include "runtime/gpu.h"
#include "runtime/options/run_options.h"

namespace triphase {

class Backend {
 public:
  // `device`: "auto" (the first GPU, else the CPU), "cpu" or "cuda:N" ("cuda" is the first). Throws
  // E-DEV-NONE (exit 5) for a device that this build or machine lacks.
  // `threads`: 0 = all cores this process may use. `deterministic`: a row's bits do not depend on
  // the rows beside it, on a GPU too.
  [[nodiscard]] static std::unique_ptr<Backend> open(std::string_view device, std::int64_t threads,
                                                     bool deterministic = false);
  // The backend of a job, which does not fall back to slow products unasked: throws E-DEV-LIBRARY
  // (exit 5) for a GPU without cuBLASLt, unless `deterministic`.
  [[nodiscard]] static std::unique_ptr<Backend> open_for_job(const MachineOptions& options);

  [[nodiscard]] Device& device() { return *parts_.device; }
  // Memory of the host that the device copies from and to at full speed.
  [[nodiscard]] Device& host() { return parts_.host ? *parts_.host : *parts_.device; }
  // The same where it is pinned, to ask what is; null on the CPU.
  [[nodiscard]] const PinnedHostDevice* pinned_host() const { return parts_.host.get(); }
  [[nodiscard]] Ops& ops() { return *parts_.ops; }
  // The CPU's operations, for work on host memory.
  [[nodiscard]] Ops& host_ops() { return host_ops_ ? *host_ops_ : *parts_.ops; }
  [[nodiscard]] SparseOps& sparse_ops() { return *parts_.sparse_ops; }
  [[nodiscard]] InputOps& input_ops() { return *parts_.input_ops; }
  // Makes random weights on the device; empty on the CPU, where the host does.
  [[nodiscard]] const RandomFill& random_fill() const { return parts_.random_fill; }
  [[nodiscard]] ThreadPool& threads() { return *threads_; }
  // What the sizes of scratch depend on.
  [[nodiscard]] const ComputeMachine& machine() const { return machine_; }
  // What computes matrix products on a GPU, or why there is no library for them; empty on the CPU.
  [[nodiscard]] const std::string& products() const { return parts_.products; }
  // Why a Hopper GPU does not attend prompts by warpgroup products; empty where it does, and on
  // other devices.
  [[nodiscard]] const std::string& warpgroup_problem() const { return parts_.warpgroup_problem; }
  // Bytes of the device that a job takes by default.
  [[nodiscard]] std::uint64_t default_memory() const;
  // Allocates what operations within `shape` need for themselves: ops_reserved_bytes of machine(),
  // which the plan has counted.
  void reserve(const OpsShape& shape);
  [[nodiscard]] Stream& stream() { return *parts_.stream; }
  // A link between the tiers beside the compute stream. `emulated`: its speed, on the CPU alone
  // (E-CLI-CONFLICT). `most_blocks`: thread blocks of one gather on a GPU; 0: what is best beside
  // compute.
  [[nodiscard]] std::unique_ptr<TransferEngine> make_transfers(
      const std::optional<EmulatedLink>& emulated, int most_blocks = 0);

  // Takes its memory from `memory`, which is the device's.
  [[nodiscard]] std::unique_ptr<KvResolver> make_resolver(const ResolverShape& shape,
                                                          Device& memory);

  // Takes seconds and 1 GiB of device memory; the best of `runs`.
  [[nodiscard]] Ceilings measure_ceilings(int runs);
  // A clock for work on this device: processor time where one thread computes, which other work on
  // a shared machine does not lengthen, else wall time. In seconds.
  [[nodiscard]] double now() const;

 private:
  Backend() = default;

  ComputeMachine machine_;
  std::unique_ptr<ThreadPool> threads_;
  BackendParts parts_;
  std::unique_ptr<Ops> host_ops_;  // null: those of the parts
};

// Throws E-CLI-CONFLICT on a GPU, which has a link of its own.
void require_no_emulated_link(const ComputeMachine& machine,
                              const std::optional<EmulatedLink>& emulated);

// Type of the KV cache: what was asked for, else the weights' type; but a GPU keeps no KV in F32:
// F16 stands for it where nobody asks, and E-CLI-OPTION is thrown where somebody does.
[[nodiscard]] DType kv_dtype_on(const ComputeMachine& machine, std::optional<DType> asked,
                                DType weights);

}  // namespace triphase
