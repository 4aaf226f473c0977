#pragma once

// The CUDA implementation of Ops. Matrices, weights and the cache lie in device memory; index spans
// and segments are host arrays, sent along on the call's stream. Activations are F32 between
// operations; `linear` rounds them to the weights' type for the library's tensor-core product (F32
// sums), or multiplies in F32 when there is no library.
//
// The cache is F16, BF16 or INT8, in pages of 32, 64 or 128 tokens; F32 caches are refused.
//
// Attention: runs of single queries (decode, and selections) use gather_attn, other queries
// prefill_attention on tensor cores, or paged_attention where that does not serve. By default work
// is divided over the GPU by the batch's lengths and the library chooses a product by the number of
// rows, so a row's last bits may depend on its neighbours. With `deterministic` they do not: cuts
// lie at absolute positions, decode takes the kernel of prefill, and `linear` is gemm_tile, whose
// sums run in one order whatever the rows (F32 on CUDA cores).
//
// Scratch is the object's own, not the callers' workspace: allocated by reserve(), as large as
// kernels/sizing/cuda_workspace.h says, and grown when a call needs more. One stream and one thread
// at a time.

#include <memory>
#include <string>

#include "kernels/cuda/argument_ring.h"
#include "kernels/cuda/gemm.h"
#include "kernels/ops.h"
#include "kernels/sizing/ops_scratch.h"

namespace triphase::cuda {

struct CudaOpsSettings {
  std::string name;  // "cuda:0 (NVIDIA H200)"
  GpuMachine machine;
  std::unique_ptr<Gemm> gemm;  // null: gemm_tile
};

class CudaOps : public Ops {
 public:
  // Allocates what calls within `shape` need: its share of cuda_scratch_bytes.
  virtual void reserve(const OpsShape& shape, Stream& stream) = 0;
};

// `device` holds the scratch, `arguments` what travels to it: shared by all operations of a compute
// stream. The device must outlive the Ops.
[[nodiscard]] std::unique_ptr<CudaOps> make_cuda_ops(Device& device,
                                                     std::shared_ptr<ArgumentRing> arguments,
                                                     CudaOpsSettings settings);

}  // namespace triphase::cuda
