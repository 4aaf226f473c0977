#include <cmath>
#include <string>

#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/norms.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const float* x, std::int64_t x_stride, const float* weight, float weight_offset,
                    float eps, float* y, std::int64_t y_stride, int cols) {
  TRIPHASE_SHARED(float, scratch, kBlockReduceWords);
  const float* row = x + blockIdx.x * x_stride;
  float squares = 0.0F;
  for (int c = static_cast<int>(threadIdx.x); c < cols; c += kThreads) {
    squares = fma_rn(row[c], row[c], squares);
  }
  squares = block_sum(squares, scratch);
  const float factor = 1.0F / sqrtf(squares / static_cast<float>(cols) + eps);
  for (int c = static_cast<int>(threadIdx.x); c < cols; c += kThreads) {
    y[blockIdx.x * y_stride + c] = row[c] * factor * (weight[c] + weight_offset);
  }
}

// Two passes: the variance of values far from zero would drown in the mean's square.
__global__ void __launch_bounds__(kThreads)
    layer_norm_kernel(const float* x, std::int64_t x_stride, const float* weight, const float* bias,
                      float eps, float* y, std::int64_t y_stride, int cols) {
  TRIPHASE_SHARED(float, scratch, kBlockReduceWords);
  const float* row = x + blockIdx.x * x_stride;
  float sum = 0.0F;
  for (int c = static_cast<int>(threadIdx.x); c < cols; c += kThreads) sum += row[c];
  const float mean = block_sum(sum, scratch) / static_cast<float>(cols);
  float squares = 0.0F;
  for (int c = static_cast<int>(threadIdx.x); c < cols; c += kThreads) {
    const float centred = row[c] - mean;
    squares = fma_rn(centred, centred, squares);
  }
  squares = block_sum(squares, scratch);
  const float factor = 1.0F / sqrtf(squares / static_cast<float>(cols) + eps);
  for (int c = static_cast<int>(threadIdx.x); c < cols; c += kThreads) {
    y[blockIdx.x * y_stride + c] =
        (row[c] - mean) * factor * weight[c] + (bias == nullptr ? 0.0F : bias[c]);
  }
}

bool is_row_operation(const ConstMatrix& x, const ConstMatrix& y, const float* weight) {
  return x.dtype == DType::kF32 && y.dtype == DType::kF32 && x.rows == y.rows && x.cols == y.cols &&
         x.cols > 0 && x.cols < (std::int64_t{1} << 31) && weight != nullptr;
}

}  // namespace

void rms_norm(ConstMatrix x, const float* weight, float weight_offset, float eps, Matrix y,
              StreamHandle stream) {
  const auto shape = [&] { return shape_text({{"x", x}, {"y", y}}); };
  require(is_row_operation(x, y, weight), "rms_norm", "x and y must be F32 of one shape", shape);
  if (x.rows == 0) return;
  TRIPHASE_LAUNCH((rms_norm_kernel), static_cast<unsigned>(x.rows), kThreads, 0, stream,
                  static_cast<const float*>(x.data), x.row_stride, weight, weight_offset, eps,
                  static_cast<float*>(y.data), y.row_stride, static_cast<int>(x.cols));
  check_launched("rms_norm", shape);
}

void layer_norm(ConstMatrix x, const float* weight, const float* bias, float eps, Matrix y,
                StreamHandle stream) {
  const auto shape = [&] { return shape_text({{"x", x}, {"y", y}}); };
  require(is_row_operation(x, y, weight), "layer_norm", "x and y must be F32 of one shape", shape);
  if (x.rows == 0) return;
  TRIPHASE_LAUNCH((layer_norm_kernel), static_cast<unsigned>(x.rows), kThreads, 0, stream,
                  static_cast<const float*>(x.data), x.row_stride, weight, bias, eps,
                  static_cast<float*>(y.data), y.row_stride, static_cast<int>(x.cols));
  check_launched("layer_norm", shape);
}

}  // namespace triphase::cuda
