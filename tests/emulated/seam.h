#pragma once

// Operations of either kind, so that one test body runs on both: the CUDA ones under test, on the
// emulator or a GPU, and the CPU's, which they are compared with.

#include <algorithm>
#include <memory>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/cpu_sparse_ops.h"
#include "kernels/sizing/attention_workspace.h"
#include "kernels/sizing/sparse_workspace.h"
#include "memory/host_device.h"
#include "tests/emulated/filled_cache.h"

namespace triphase::cuda {

struct Seam {
  Ops& ops;
  SparseOps& sparse;
  Device& device;
  Stream& stream;
  Workspace workspace = {};
};

// The CPU's operations over FilledCaches, with room for prompts of 160 tokens.
class Cpu {
 public:
  explicit Cpu(std::int64_t heads = 6) {
    const AttentionShape largest{.heads = heads,
                                 .kv_heads = FilledCache::kKvHeads,
                                 .head_dim = FilledCache::kDim,
                                 .max_query_rows = 160,
                                 .max_context = 160};
    workspace_.bytes =
        std::max(sparse_workspace_bytes(largest), attention_workspace_bytes(largest));
    workspace_.data = static_cast<std::byte*>(device_.allocate(workspace_.bytes));
  }
  ~Cpu() { device_.release(workspace_.data, workspace_.bytes); }
  Cpu(const Cpu&) = delete;
  Cpu& operator=(const Cpu&) = delete;
  [[nodiscard]] Seam seam() { return {*ops_, *sparse_, device_, *stream_, workspace_}; }

 private:
  HostDevice device_;
  ThreadPool pool_{1};
  std::unique_ptr<Ops> ops_ = make_cpu_ops(pool_);
  std::unique_ptr<SparseOps> sparse_ = make_cpu_sparse_ops(pool_, device_);
  std::unique_ptr<Stream> stream_ = device_.make_stream();
  Workspace workspace_;
};

}  // namespace triphase::cuda
