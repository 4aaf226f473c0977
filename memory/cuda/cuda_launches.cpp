#include "memory/cuda/cuda_launches.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/cuda_launch.h"

namespace triphase {
namespace {

cudaKernelNodeParams params_of(const Launch& launch, cuda::LaunchAddresses& addresses) {
  cudaKernelNodeParams params{};
  params.func = const_cast<void*>(launch.kernel);
  params.gridDim = dim3(launch.grid[0], launch.grid[1], launch.grid[2]);
  params.blockDim = dim3(launch.block[0], launch.block[1], launch.block[2]);
  params.sharedMemBytes = static_cast<unsigned>(launch.shared_bytes);
  params.kernelParams = addresses.data();
  return params;
}

class CudaGraph final : public LaunchRunner::Graph {
 public:
  CudaGraph() = default;
  ~CudaGraph() override {
    // One that still runs is freed when it has ended.
    if (exec_ != nullptr) (void)cudaGraphExecDestroy(exec_);
    if (graph_ != nullptr) (void)cudaGraphDestroy(graph_);
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  // `capturing`: a stream that does nothing else.
  [[nodiscard]] cudaError_t make(std::span<const Launch> launches, cudaStream_t capturing) {
    cudaError_t status = cudaGraphCreate(&graph_, 0);
    for (const Launch& launch : launches) {
      if (status == cudaSuccess) status = append(launch, capturing);
    }
    return status == cudaSuccess ? cudaGraphInstantiate(&exec_, graph_, 0) : status;
  }
  [[nodiscard]] cudaGraphExec_t exec() const { return exec_; }
  [[nodiscard]] cudaGraphNode_t node(std::size_t at) const { return nodes_[at]; }

 private:
  cudaError_t append(const Launch& launch, cudaStream_t capturing) {
    const std::vector<cudaGraphNode_t>& befores = launch.beside ? last_waits_for_ : last_;
    cudaGraphNode_t node = nullptr;
    cudaError_t status = cudaSuccess;
    if (launch.call == nullptr) {
      cuda::LaunchAddresses addresses(launch);
      const cudaKernelNodeParams params = params_of(launch, addresses);
      status = cudaGraphAddKernelNode(&node, graph_, befores.data(), befores.size(), &params);
    } else {
      cudaGraph_t child = nullptr;
      status = capture(launch, capturing, child);
      if (status == cudaSuccess) {
        status = cudaGraphAddChildGraphNode(&node, graph_, befores.data(), befores.size(), child);
      }
      if (child != nullptr) (void)cudaGraphDestroy(child);
    }
    nodes_.push_back(node);
    if (!launch.beside) last_waits_for_ = std::exchange(last_, {});
    last_.push_back(node);
    return status;
  }

  static cudaError_t capture(const Launch& launch, cudaStream_t stream, cudaGraph_t& child) {
    cudaError_t status = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (status != cudaSuccess) return status;
    try {
      launch.call(launch.arguments.data(), stream);
    } catch (const Error&) {
      status = cudaErrorStreamCaptureUnsupported;
    }
    const cudaError_t ended = cudaStreamEndCapture(stream, &child);
    return status == cudaSuccess ? ended : status;
  }

  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
  std::vector<cudaGraphNode_t> nodes_;  // one a launch
  // What the next one waits for: the last, and those beside it.
  std::vector<cudaGraphNode_t> last_;
  std::vector<cudaGraphNode_t> last_waits_for_;
};

}  // namespace

CudaLaunches::~CudaLaunches() {
  if (capturing_ != nullptr) (void)cudaStreamDestroy(capturing_);
}

void CudaLaunches::run(const Launch& launch) { cuda::run_launch(launch, stream_); }

std::unique_ptr<LaunchRunner::Graph> CudaLaunches::make_graph(std::span<const Launch> launches) {
  auto graph = std::make_unique<CudaGraph>();
  cudaError_t status = cudaSuccess;
  if (capturing_ == nullptr) status = cudaStreamCreateWithFlags(&capturing_, cudaStreamNonBlocking);
  if (status == cudaSuccess) status = graph->make(launches, capturing_);
  if (status == cudaSuccess) return graph;
  (void)cudaGetLastError();  // it must not turn up again at the next launch
  return nullptr;
}

void CudaLaunches::update(Graph& graph, std::size_t at, const Launch& launch) {
  auto& cuda_graph = dynamic_cast<CudaGraph&>(graph);
  cuda::LaunchAddresses addresses(launch);
  const cudaKernelNodeParams params = params_of(launch, addresses);
  const cudaError_t status =
      cudaGraphExecKernelNodeSetParams(cuda_graph.exec(), cuda_graph.node(at), &params);
  if (status != cudaSuccess) throw_cuda_error(status, launch.name, cuda::sizes_of(launch));
}

void CudaLaunches::run(Graph& graph) {
  check_cuda(cudaGraphLaunch(dynamic_cast<CudaGraph&>(graph).exec(), stream_), "cudaGraphLaunch");
}

}  // namespace triphase
