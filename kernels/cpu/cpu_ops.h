#pragma once

// The CPU implementation of Ops: SIMD by Highway, chosen for the machine at run time, on all
// threads of a pool. Holds no buffers and allocates nothing in a call. A call uses the whole pool:
// one call at a time per pool. The pool must outlive the Ops.

#include <memory>

#include "base/thread_pool.h"
#include "kernels/ops.h"

namespace triphase {

// The environment variable TRIPHASE_SIMD (amx, avx512, avx2, sse4 or scalar) limits the
// instructions, for the whole process. Throws ErrorRole::kUsage E-CLI-SIMD when it names something
// else.
[[nodiscard]] std::unique_ptr<Ops> make_cpu_ops(ThreadPool& pool);

}  // namespace triphase
