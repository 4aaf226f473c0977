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

// One thread per column.
__global__ void __launch_bounds__(kThreads)
    sum_values_kernel(const float* v, std::int64_t stride, std::int64_t rows, std::int64_t cols,
                      float* sums) {
  const std::int64_t c = column();
  if (c >= cols) return;
  float sum = sums[c];
  TRIPHASE_UNROLL_FOUR
  for (std::int64_t row = 0; row < rows; ++row) sum = add_rn(sum, v[row * stride + c]);
  sums[c] = sum;
}

__global__ void __launch_bounds__(kThreads)
    reallocate_kernel(float* out, std::int64_t cols, int head_dim, int group, const float* alpha,
                      const float* sums, float share) {
  const std::int64_t c = column();
  if (c >= cols) return;
  const std::int64_t head = c / head_dim;
  float value = mul_rn(alpha[head], out[c]);
  if (sums != nullptr) {
    const float mean = mul_rn(sums[head / group * head_dim + c % head_dim], share);
    value = add_rn(value, mul_rn(sub_rn(1.0F, alpha[head]), mean));
  }
  out[c] = value;
}

}  // namespace

void sum_values(ConstMatrix v, float* sums, StreamHandle stream) {
  const auto shape = [&] { return shape_text({{"v", v}}); };
  require(v.dtype == DType::kF32 && v.row_stride >= v.cols, "sum_values", "v must be F32 rows",
          shape);
  if (v.rows == 0 || v.cols == 0) return;
  require(v.data != nullptr && sums != nullptr, "sum_values", "null pointer", shape);
  TRIPHASE_LAUNCH((sum_values_kernel),
                  static_cast<unsigned>(ceil_div<std::int64_t>(v.cols, kThreads)), kThreads, 0,
                  stream, static_cast<const float*>(v.data), v.row_stride, v.rows, v.cols, sums);
  check_launched("sum_values", shape);
}

void reallocate(Matrix out, std::int64_t heads, std::int64_t kv_heads, const float* alpha,
                const float* sums, std::int64_t tokens, StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"out", out}}) + ", " +
           shape_text({{"heads", heads}, {"kv_heads", kv_heads}, {"tokens", tokens}});
  };
  require(out.dtype == DType::kF32 && out.rows == 1 && kv_heads > 0 && heads > 0 &&
              heads % kv_heads == 0 && out.cols > 0 && out.cols % heads == 0,
          "reallocate", "one F32 row of whole groups of heads", shape);
  require(sums == nullptr || tokens > 0, "reallocate", "a mean of no tokens", shape);
  require(out.data != nullptr && alpha != nullptr, "reallocate", "null pointer", shape);
  TRIPHASE_LAUNCH((reallocate_kernel),
                  static_cast<unsigned>(ceil_div<std::int64_t>(out.cols, kThreads)), kThreads, 0,
                  stream, static_cast<float*>(out.data), out.cols,
                  static_cast<int>(out.cols / heads), static_cast<int>(heads / kv_heads), alpha,
                  sums, sums == nullptr ? 0.0F : 1.0F / static_cast<float>(tokens));
  check_launched("reallocate", shape);
}

}  // namespace triphase::cuda
