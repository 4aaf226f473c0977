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

struct Top {
  float value;
  int index;
};

__device__ inline Top better(Top a, Top b) {
  return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}

__global__ void __launch_bounds__(kThreads)
    top_logit_kernel(const float* logits, std::int64_t stride, int cols, std::int32_t* top,
                     float* value, float* log_sum) {
  TRIPHASE_SHARED(float, scratch, kBlockReduceWords);
  TRIPHASE_SHARED(int, index_scratch, kBlockReduceWords);
  const float* row = logits + blockIdx.x * stride;
  Top best{-INFINITY, cols};
  bool broken = false;
  for (int c = static_cast<int>(threadIdx.x); c < cols; c += kThreads) {
    const float logit = row[c];
    broken = broken || !(logit < INFINITY);
    best = better(best, {logit, c});
  }
  for (int step = kWarpSize / 2; step > 0; step /= 2) {
    best = better(best, {shuffle_xor(best.value, step), shuffle_xor(best.index, step)});
  }
  if (lane_id() == 0) {
    scratch[warp_id()] = best.value;
    index_scratch[warp_id()] = best.index;
  }
  __syncthreads();
  for (int warp = 0; warp < kThreads / kWarpSize; ++warp) {
    best = better(best, {scratch[warp], index_scratch[warp]});
  }
  __syncthreads();
  broken = block_max(broken ? 1.0F : 0.0F, scratch) > 0.0F;
  float sum = 0.0F;
  if (log_sum != nullptr && best.value > -INFINITY) {
    for (int c = static_cast<int>(threadIdx.x); c < cols; c += kThreads) {
      sum += expf(row[c] - best.value);
    }
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) {
    top[blockIdx.x] = broken || best.index >= cols ? -1 : best.index;
    if (value != nullptr) value[blockIdx.x] = best.value;
    if (log_sum != nullptr) log_sum[blockIdx.x] = best.value + logf(sum);
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

void top_logit(ConstMatrix logits, std::int32_t* top, float* value, float* log_sum,
               StreamHandle stream) {
  const auto shape = [&] { return shape_text({{"logits", logits}}); };
  require(logits.dtype == DType::kF32 && logits.cols > 0 && logits.cols < (std::int64_t{1} << 31) &&
              top != nullptr,
          "top_logit", "logits must be F32 with columns", shape);
  if (logits.rows == 0) return;
  TRIPHASE_LAUNCH((top_logit_kernel), static_cast<unsigned>(logits.rows), kThreads, 0, stream,
                  static_cast<const float*>(logits.data), logits.row_stride,
                  static_cast<int>(logits.cols), top, value, log_sum);
  check_launched("top_logit", shape);
}

}  // namespace triphase::cuda
