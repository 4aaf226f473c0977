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
  float sum = sums[c];
  TRIPHASE_UNROLL_BY(4)
  for (std::int64_t row = part.first_row; row < part.first_row + part.rows; ++row) {
    sum = add_rn(sum, v[row * stride + c]);
  }
  sums[c] = sum;
}

__global__ void __launch_bounds__(kThreads)
    reallocate_kernel(float* out, std::int64_t stride, std::int64_t cols, int head_dim, int group,
                      int heads, const float* alpha, const ReallocatedRow* rows,
                      std::int64_t layer) {
  const std::int64_t c = column();
  if (c >= cols) return;
  const ReallocatedRow row = rows[blockIdx.y];
  float* to = out + row.row * stride + c;
  const std::int64_t head = c / head_dim;
  const float own = alpha[static_cast<std::int64_t>(blockIdx.y) * heads + head];
  float value = mul_rn(own, *to);
  if (row.sums != nullptr) {
    const float* sums = in_layer(row.sums, row.layer_bytes, layer);
    const float share = div_rn(1.0F, static_cast<float>(row.tokens));
    const float mean = mul_rn(sums[head / group * head_dim + c % head_dim], share);
    value = add_rn(value, mul_rn(sub_rn(1.0F, own), mean));
  }
  *to = value;
}

constexpr std::int64_t kMostRows = 65535;  // blocks of a grid's second dimension

dim3 grid_of(std::int64_t cols, std::int64_t rows) {
  return {static_cast<unsigned>(ceil_div<std::int64_t>(cols, kThreads)),
          static_cast<unsigned>(rows)};
}

}  // namespace

void sum_values(ConstMatrix v, const ValueRows* parts, std::int64_t count, std::int64_t layer,
                StreamHandle stream) {
  const auto shape = [&] { return shape_text({{"v", v}}) + ", " + shape_text({{"parts", count}}); };
  require(v.dtype == DType::kF32 && v.row_stride >= v.cols, "sum_values", "v must be F32 rows",
          shape);
  require(count >= 0 && count <= kMostRows, "sum_values", "too many parts", shape);
  if (count == 0 || v.rows == 0 || v.cols == 0) return;
  require(v.data != nullptr && parts != nullptr, "sum_values", "null pointer", shape);
  TRIPHASE_LAUNCH((sum_values_kernel), grid_of(v.cols, count), kThreads, 0, stream,
                  static_cast<const float*>(v.data), v.row_stride, v.cols, parts, layer);
  check_launched("sum_values", shape);
}

void reallocate(Matrix out, const ReallocatedRow* rows, std::int64_t count, std::int64_t heads,
                std::int64_t kv_heads, const float* alpha, std::int64_t layer,
                StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"out", out}}) + ", " +
           shape_text({{"heads", heads}, {"kv_heads", kv_heads}, {"rows", count}});
  };
  require(out.dtype == DType::kF32 && kv_heads > 0 && heads > 0 && heads % kv_heads == 0 &&
              out.cols > 0 && out.cols % heads == 0,
          "reallocate", "F32 rows of whole groups of heads", shape);
  require(count >= 0 && count <= kMostRows, "reallocate", "too many rows", shape);
  if (count == 0) return;
  require(out.data != nullptr && rows != nullptr && alpha != nullptr, "reallocate", "null pointer",
          shape);
  TRIPHASE_LAUNCH((reallocate_kernel), grid_of(out.cols, count), kThreads, 0, stream,
                  static_cast<float*>(out.data), out.row_stride, out.cols,
                  static_cast<int>(out.cols / heads), static_cast<int>(heads / kv_heads),
                  static_cast<int>(heads), alpha, rows, layer);
  check_launched("reallocate", shape);
}

}  // namespace triphase::cuda
