#pragma once

// SparseOps on a GPU: SparQ's choice (sparq_select; rows too long for a block's shared memory take
// score_rows and select_rows) and its transposed keys, softmax probabilities over all keys (exact
// top-k), column sums and kept tokens (H2O), windows of weights (SWA), bounds and scores of pages
// (Quest) and of clusters (Squeezed).
// Where a method decides on the host, the call copies its results there and waits for the stream.

#include <memory>

#include "kernels/cuda/argument_ring.h"
#include "kernels/sizing/ops_scratch.h"
#include "kernels/sparse_ops.h"

namespace triphase::cuda {

class CudaSparseOps : public SparseOps {
 public:
  // Allocates what calls within `shape` need: its share of cuda_scratch_bytes.
  virtual void reserve(const OpsShape& shape, Stream& stream) = 0;
};

// `device` holds scratch, `arguments` (make_cuda_ops) what travels to it and `host` what travels
// from it; the devices must outlive the result. Workspaces given with a call are not used. One
// stream and one thread at a time.
[[nodiscard]] std::unique_ptr<CudaSparseOps> make_cuda_sparse_ops(
    Device& device, Device& host, std::shared_ptr<ArgumentRing> arguments,
    const GpuMachine& machine);

}  // namespace triphase::cuda
