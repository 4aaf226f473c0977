#pragma once

// RowLimit (kernels/ops.h) inside a kernel. Included by kernels only.

#include "kernels/cuda/dialect.h"
#include "kernels/ops.h"

namespace triphase::cuda {

// How many of `rows` rows the limit leaves.
__device__ inline int limited_rows(const RowLimit& limit, int rows) {
  if (limit.count == nullptr) return rows;
  const std::int64_t left = *limit.count - limit.first;
  return static_cast<int>(larger<std::int64_t>(0, smaller<std::int64_t>(left, rows)));
}

}  // namespace triphase::cuda
