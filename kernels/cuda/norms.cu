#include <cmath>
#include <string>

#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/norms.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostHeads = 65535;  // of a grid's second dimension

// What is written of a row: zeros beyond its columns. Heads of a row lie along the grid's y.
template <class T>
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const float* x, std::int64_t x_stride, const float* weight, float weight_offset,
                    float eps, bool accumulate, T* y, std::int64_t y_stride, int cols, int y_cols) {
  TRIPHASE_SHARED(float, scratch, kBlockReduceWords);
  const std::int64_t head = static_cast<std::int64_t>(blockIdx.y) * cols;
  const float* row = x + blockIdx.x * x_stride + head;
  float squares = 0.0F;
  for (int c = static_cast<int>(threadIdx.x); c < cols; c += kThreads) {
    squares = fma_rn(row[c], row[c], squares);
  }
  squares = block_sum(squares, scratch);
  const float factor = 1.0F / sqrtf(squares / static_cast<float>(cols) + eps);
  for (int c = static_cast<int>(threadIdx.x); c < y_cols; c += kThreads) {
    float value = c < cols ? row[c] * factor * (weight[c] + weight_offset) : 0.0F;
    T* to = y + blockIdx.x * y_stride + head + c;
    if (accumulate) value += to_float(*to);
    *to = from_float<T>(value);
  }
}

// Two passes: the variance of values far from zero would drown in the mean's square.
template <class T>
__global__ void __launch_bounds__(kThreads)
    layer_norm_kernel(const float* x, std::int64_t x_stride, const float* weight, const float* bias,
                      float eps, T* y, std::int64_t y_stride, int cols, int y_cols) {
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
  for (int c = static_cast<int>(threadIdx.x); c < y_cols; c += kThreads) {
    float value = 0.0F;
    if (c < cols) value = (row[c] - mean) * factor * weight[c] + (bias == nullptr ? 0.0F : bias[c]);
    y[blockIdx.x * y_stride + c] = from_float<T>(value);
  }
}

bool is_row_operation(const ConstMatrix& x, const ConstMatrix& y, const float* weight) {
  return x.dtype == DType::kF32 && x.rows == y.rows && x.cols <= y.cols && x.cols > 0 &&
         y.cols < (std::int64_t{1} << 31) && weight != nullptr;
}

}  // namespace

void rms_norm(ConstMatrix x, const float* weight, float weight_offset, float eps, Matrix y,
              StreamHandle stream) {
  const auto shape = [&] { return shape_text({{"x", x}, {"y", y}}); };
  require(is_row_operation(x, y, weight), "rms_norm",
          "x must be F32, y of as many rows and as wide at least", shape);
  if (x.rows == 0) return;
  for_float_type(y.dtype, "rms_norm", shape, [&]<class T>() {
    TRIPHASE_LAUNCH((rms_norm_kernel<T>), static_cast<unsigned>(x.rows), kThreads, 0, stream,
                    static_cast<const float*>(x.data), x.row_stride, weight, weight_offset, eps,
                    false, static_cast<T*>(y.data), y.row_stride, static_cast<int>(x.cols),
                    static_cast<int>(y.cols));
  });
  check_launched("rms_norm", shape);
}

void add_rms_norm(ConstMatrix x, const float* weight, float weight_offset, float eps, Matrix y,
                  StreamHandle stream) {
  const auto shape = [&] { return shape_text({{"x", x}, {"y", y}}); };
  require(is_row_operation(x, y, weight) && y.dtype == DType::kF32 && x.cols == y.cols,
          "add_rms_norm", "x and y must be F32 of one shape", shape);
  if (x.rows == 0) return;
  TRIPHASE_LAUNCH((rms_norm_kernel<float>), static_cast<unsigned>(x.rows), kThreads, 0, stream,
                  static_cast<const float*>(x.data), x.row_stride, weight, weight_offset, eps, true,
                  static_cast<float*>(y.data), y.row_stride, static_cast<int>(x.cols),
                  static_cast<int>(y.cols));
  check_launched("add_rms_norm", shape);
}

void head_norm(Matrix x, std::int64_t heads, const float* weight, float weight_offset, float eps,
               StreamHandle stream) {
  const auto shape = [&] { return shape_text({{"x", x}}) + ", " + shape_text({{"heads", heads}}); };
  require(heads > 0 && heads <= kMostHeads && x.cols % heads == 0 && x.dtype == DType::kF32 &&
              is_row_operation(x, x, weight),
          "head_norm", "F32 rows of equal heads", shape);
  if (x.rows == 0) return;
  auto* data = static_cast<float*>(x.data);
  const auto width = static_cast<int>(x.cols / heads);
  const dim3 grid(static_cast<unsigned>(x.rows), static_cast<unsigned>(heads), 1);
  TRIPHASE_LAUNCH((rms_norm_kernel<float>), grid, kThreads, 0, stream, data, x.row_stride, weight,
                  weight_offset, eps, false, data, x.row_stride, width, width);
  check_launched("head_norm", shape);
}

void layer_norm(ConstMatrix x, const float* weight, const float* bias, float eps, Matrix y,
                StreamHandle stream) {
  const auto shape = [&] { return shape_text({{"x", x}, {"y", y}}); };
  require(is_row_operation(x, y, weight), "layer_norm",
          "x must be F32, y of as many rows and as wide at least", shape);
  if (x.rows == 0) return;
  for_float_type(y.dtype, "layer_norm", shape, [&]<class T>() {
    TRIPHASE_LAUNCH((layer_norm_kernel<T>), static_cast<unsigned>(x.rows), kThreads, 0, stream,
                    static_cast<const float*>(x.data), x.row_stride, weight, bias, eps,
                    static_cast<T*>(y.data), y.row_stride, static_cast<int>(x.cols),
                    static_cast<int>(y.cols));
  });
  check_launched("layer_norm", shape);
}

}  // namespace triphase::cuda
