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
// is divided over the GPU by the batch's lengths, so a row's last bits may depend on its
// neighbours; with `deterministic` cuts lie at absolute positions and all but selections use
// paged_attention.
//
// Scratch beyond the given workspace is the object's own: allocated at the start for the shapes
// that `reserve` names, by kernels/sizing/cuda_workspace.h, and grown when a call needs more. One
// stream and one thread at a time.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kernels/cuda/gemm.h"
#include "kernels/ops.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {

struct CudaOpsSettings {
  std::string name;  // "cuda:0 (NVIDIA H200)"
  std::int64_t multiprocessors = 1;
  std::int64_t shared_bytes_per_multiprocessor = 0;
  bool deterministic = false;
  // The CUDA stream behind one of the device's streams.
  std::function<StreamHandle(Stream&)> stream_handle;
  std::unique_ptr<Gemm> gemm;  // null: gemm_tile
  // What cuda_scratch_bytes says for the calls to come is allocated at the start.
  std::optional<CudaScratchShape> reserve;
};

// `device` holds the scratch, `host` what travels to it; both must outlive the Ops.
[[nodiscard]] std::unique_ptr<Ops> make_cuda_ops(Device& device, Device& host,
                                                 CudaOpsSettings settings);

}  // namespace triphase::cuda
