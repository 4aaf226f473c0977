#pragma once

// The CPU implementation of SparseOps, on all threads of a pool, with the SIMD target that
// make_cpu_ops chose. One call at a time per pool. The pool and the device, in whose memory methods
// keep their state, must outlive it.

#include <memory>

#include "base/thread_pool.h"
#include "kernels/sparse_ops.h"

namespace triphase {

[[nodiscard]] std::unique_ptr<SparseOps> make_cpu_sparse_ops(ThreadPool& pool, Device& memory);

}  // namespace triphase
