#include <cmath>
#include <string>

#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/input_codes.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/input_ops.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    quantize_inputs_kernel(const float* x, std::int64_t stride, std::int64_t cols,
                           std::int8_t* codes, float* scales) {
  TRIPHASE_SHARED(float, scratch, kBlockReduceWords);
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  const float* from = x + row * stride;
  std::int8_t* to = codes + row * cols;
  float largest = 0.0F;
  float broken = 0.0F;  // 1 once NaN or infinity comes
  for (std::int64_t c = threadIdx.x; c < cols; c += kThreads) {
    const float size = fabsf(from[c]);
    if (size < INFINITY) {
      largest = larger(largest, size);
    } else {
      broken = 1.0F;
    }
  }
  largest = block_max(largest, scratch);
  broken = block_max(broken, scratch);
  const float scale = broken > 0.0F ? NAN : div_rn(largest, kLargestInputCode);
  if (threadIdx.x == 0) scales[row] = scale;
  for (std::int64_t c = threadIdx.x; c < cols; c += kThreads) {
    float code = 0.0F;
    if (scale > 0.0F) {
      // A subnormal scale may have lost so much that the ratio leaves the codes' range.
      const float ratio = div_rn(from[c], scale);
      code = round_even(smaller(larger(ratio, -kLargestInputCode), kLargestInputCode));
    }
    to[c] = static_cast<std::int8_t>(code);
  }
}

__global__ void __launch_bounds__(kThreads)
    dequantize_inputs_kernel(const std::int8_t* codes, const float* scales, std::int64_t cols,
                             float* x, std::int64_t stride) {
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  const float scale = scales[row];
  for (std::int64_t c = threadIdx.x; c < cols; c += kThreads) {
    x[row * stride + c] = mul_rn(static_cast<float>(codes[row * cols + c]), scale);
  }
}

void check_inputs(const ConstMatrix& x, const void* codes, const float* scales,
                  const char* kernel) {
  const LaunchCheck check(kernel, [&] { return shape_text({{"x", x}}); });
  check(x.dtype == DType::kF32 && x.rows >= 0 && x.cols > 0 && x.row_stride >= x.cols,
        "x must be F32 rows");
  check(x.rows == 0 || (x.data != nullptr && codes != nullptr && scales != nullptr),
        "null pointer");
}

}  // namespace

void quantize_inputs(ConstMatrix x, std::int8_t* codes, float* scales, StreamHandle stream) {
  check_inputs(x, codes, scales, "quantize_inputs");
  if (x.rows == 0) return;
  TRIPHASE_LAUNCH((quantize_inputs_kernel), static_cast<unsigned>(x.rows), kThreads, 0, stream,
                  static_cast<const float*>(x.data), x.row_stride, x.cols, codes, scales);
  check_launched("quantize_inputs", [&] { return shape_text({{"x", x}}); });
}

void dequantize_inputs(const std::int8_t* codes, const float* scales, Matrix x,
                       StreamHandle stream) {
  check_inputs(x, codes, scales, "dequantize_inputs");
  if (x.rows == 0) return;
  TRIPHASE_LAUNCH((dequantize_inputs_kernel), static_cast<unsigned>(x.rows), kThreads, 0, stream,
                  codes, scales, x.cols, static_cast<float*>(x.data), x.row_stride);
  check_launched("dequantize_inputs", [&] { return shape_text({{"x", x}}); });
}

}  // namespace triphase::cuda
