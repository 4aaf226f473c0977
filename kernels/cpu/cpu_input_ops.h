#pragma once

// The CPU implementation of InputOps, on all threads of a pool, which must outlive it.

#include <memory>

#include "base/thread_pool.h"
#include "kernels/input_ops.h"

namespace triphase {

[[nodiscard]] std::unique_ptr<InputOps> make_cpu_input_ops(ThreadPool& pool);

}  // namespace triphase
