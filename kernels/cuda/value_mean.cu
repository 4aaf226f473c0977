#include <string>

#include "kernels/cuda/dialect.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/value_mean.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 128;

__device__ inline std::int64_t column() {
  return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

// One thread per column and part.
__global__ void __launch_bounds__(kThreads)
    sum_values_kernel(const float* v, std::int64_t stride, std::int64_t cols,
                      const ValueRows* parts, std::int64_t layer) {
  const std::int64_t c = column();
  if (c >= cols) return;
  const ValueRows part = parts[blockIdx.y];
  float* sums = in_layer(part.sums, part.layer_bytes, layer);
  float sum = part.tokens > 0 ? sums[c] : 0.0F;
  TRIPHASE_UNROLL_BY(4)
  for (std::int64_t row = part.first_row; row < part.first_row + part.rows; ++row) {
    sum = add_rn(sum, v[row * stride + c]);
  }
  sums[c] = sum;
}

dim3 grid_of(std::int64_t cols, std::int64_t rows) {
  return {static_cast<unsigned>(ceil_div<std::int64_t>(cols, kThreads)),
          static_cast<unsigned>(rows)};
}

}  // namespace

void sum_values(ConstMatrix v, const ValueRows* parts, std::int64_t count, std::int64_t layer,
                bool beside, StreamHandle stream) {
  const auto shape = [&] { return shape_text({{"v", v}}) + ", " + shape_text({{"parts", count}}); };
  require(v.dtype == DType::kF32 && v.row_stride >= v.cols, "sum_values", "v must be F32 rows",
          shape);
  require(count >= 0 && count <= kMostGridY, "sum_values", "too many parts", shape);
  if (count == 0 || v.rows == 0 || v.cols == 0) return;
  require(v.data != nullptr && parts != nullptr, "sum_values", "null pointer", shape);
  TRIPHASE_LAUNCH((sum_values_kernel), grid_of(v.cols, count), kThreads, 0,
                  LaunchOn(stream, beside), static_cast<const float*>(v.data), v.row_stride, v.cols,
                  parts, layer);
  check_launched("sum_values", shape);
}

}  // namespace triphase::cuda
