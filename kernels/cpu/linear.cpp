#include <algorithm>

#include "base/rounding.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/linear_tiles.h"
#include "kernels/cpu/simd_target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear.cpp"
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/linear_tile-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {
namespace {

// Rows of x of one task, which all pass by its rows of w.
constexpr std::int64_t kTaskRows = 64;

// Rows of w of one task: about 128 KiB, in whole tiles of any number of columns.
std::int64_t cols_per_task(std::int64_t depth, DType dtype) {
  constexpr std::int64_t kStep = 24;
  const std::int64_t row_bytes =
      std::max<std::int64_t>(1, depth) * static_cast<std::int64_t>(dtype_bytes(dtype));
  return std::clamp<std::int64_t>(128 * 1024 / row_bytes / kStep * kStep, kStep, 504);
}

}  // namespace

void linear(ThreadPool& pool, ConstMatrix x, ConstMatrix w, const float* bias, bool accumulate,
            Matrix y) {
  const Problem p{.x = static_cast<const float*>(x.data),
                  .x_stride = x.row_stride,
                  .depth = x.cols,
                  .w = w.data,
                  .w_stride = w.row_stride,
                  .bias = bias,
                  .accumulate = accumulate,
                  .y = static_cast<float*>(y.data),
                  .y_stride = y.row_stride};
  const std::int64_t cols = cols_per_task(x.cols, w.dtype);
  const std::int64_t row_tasks = ceil_div(x.rows, kTaskRows);
  const std::int64_t col_tasks = ceil_div(w.rows, cols);
  pool.parallel_for(row_tasks * col_tasks, [&](std::int64_t task, int) {
    const std::int64_t row = task / col_tasks * kTaskRows;
    const std::int64_t first = task % col_tasks * cols;
    with_type(w.dtype, [&]<class T>() {
      multiply_part<T>(p, row, std::min(kTaskRows, x.rows - row), first,
                       std::min(w.rows, first + cols));
    });
  });
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace triphase::cpu {
namespace {
HWY_EXPORT(linear);
}  // namespace

void linear(ThreadPool& pool, ConstMatrix x, ConstMatrix w, const float* bias, bool accumulate,
            Matrix y) {
  if (w.dtype == DType::kBF16 && uses_bf16_tiles()) {
    return linear_by_tiles(pool, x, w, bias, accumulate, y);
  }
  HWY_DYNAMIC_DISPATCH(linear)(pool, x, w, bias, accumulate, y);
}

}  // namespace triphase::cpu
#endif
