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
  ~CudaLaunches() override;
  CudaLaunches(const CudaLaunches&) = delete;
  CudaLaunches& operator=(const CudaLaunches&) = delete;

  void run(const Launch& launch) override;
  // Null where CUDA refuses: the job goes on without graphs.
  [[nodiscard]] std::unique_ptr<Graph> make_graph(std::span<const Launch> launches) override;
  void update(Graph& graph, std::size_t at, const Launch& launch) override;
  void run(Graph& graph) override;

 private:
  cudaStream_t stream_;
  cudaStream_t capturing_ = nullptr;  // made with the first graph
};

}  // namespace triphase
