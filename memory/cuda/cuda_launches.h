#pragma once

// Runs launches on one CUDA stream, alone or as CUDA graphs. A graph's kernels follow one another;
// a library's call becomes a child graph, captured on a stream of its own.

#include <cuda_runtime_api.h>

#include <memory>
#include <span>

#include "memory/launch_graphs.h"

namespace triphase {

class CudaLaunches final : public LaunchRunner {
 public:
  explicit CudaLaunches(cudaStream_t stream) : stream_(stream) {}

  void run(const Launch& launch) override;
  // Null where CUDA refuses: the job goes on without graphs.
  [[nodiscard]] std::unique_ptr<Graph> make_graph(std::span<const Launch> launches) override;
  void update(Graph& graph, std::size_t at, const Launch& launch) override;
  void run(Graph& graph) override;

 private:
  cudaStream_t stream_;
};

}  // namespace triphase
