#include <string>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/gemm_tile.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/row_limit.h"

namespace triphase::cuda {
namespace {

constexpr int kTile = 64;   // rows and columns of y per block
constexpr int kDepth = 16;  // columns of x and w per step
constexpr int kThreads = 256;
constexpr int kOwn = 4;             // rows and columns of y per thread
constexpr int kStride = kTile + 4;  // keeps 16-byte reads aligned and banks apart

template <class T>
__global__ void __launch_bounds__(kThreads)
    gemm_tile_kernel(const float* x, std::int64_t x_stride, const T* w, std::int64_t w_stride,
                     const float* bias, bool accumulate, float* y, std::int64_t y_stride,
                     const RowLimit limit, int most_rows, int cols, int depth) {
  TRIPHASE_SHARED(float, x_tile, kDepth* kStride);
  TRIPHASE_SHARED(float, w_tile, kDepth* kStride);
  const int first_col = static_cast<int>(blockIdx.x) * kTile;
  const int first_row = static_cast<int>(blockIdx.y) * kTile;
  const int rows = limited_rows(limit, most_rows);
  if (first_row >= rows) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int own_col = thread % (kTile / kOwn) * kOwn;
  const int own_row = thread / (kTile / kOwn) * kOwn;
  float sums[kOwn][kOwn] = {};
  for (int begin = 0; begin < depth; begin += kDepth) {
    for (int i = thread; i < kTile * kDepth; i += kThreads) {
      const int line = i / kDepth;
      const int k = i % kDepth;
      const bool inside = begin + k < depth;
      x_tile[k * kStride + line] =
          inside && first_row + line < rows ? x[(first_row + line) * x_stride + begin + k] : 0.0F;
      w_tile[k * kStride + line] = inside && first_col + line < cols
                                       ? to_float(w[(first_col + line) * w_stride + begin + k])
                                       : 0.0F;
    }
    __syncthreads();
    for (int k = 0; k < kDepth; ++k) {
      float a[kOwn];
      float b[kOwn];
      TRIPHASE_UNROLL
      for (int i = 0; i < kOwn; ++i) {
        a[i] = x_tile[k * kStride + own_row + i];
        b[i] = w_tile[k * kStride + own_col + i];
      }
      TRIPHASE_UNROLL
      for (int i = 0; i < kOwn; ++i) {
        TRIPHASE_UNROLL
        for (int j = 0; j < kOwn; ++j) sums[i][j] = fma_rn(a[i], b[j], sums[i][j]);
      }
    }
    __syncthreads();
  }
  TRIPHASE_UNROLL
  for (int i = 0; i < kOwn; ++i) {
    TRIPHASE_UNROLL
    for (int j = 0; j < kOwn; ++j) {
      const int row = first_row + own_row + i;
      const int col = first_col + own_col + j;
      if (row >= rows || col >= cols) continue;
      float* to = y + row * y_stride + col;
      float value = sums[i][j] + (bias == nullptr ? 0.0F : bias[col]);
      if (accumulate) value += *to;
      *to = value;
    }
  }
}

}  // namespace

void gemm_tile(ConstMatrix x, ConstMatrix w, const float* bias, bool accumulate, Matrix y,
               StreamHandle stream, const RowLimit& limit) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  const auto shape = [&] { return shape_text({{"x", x}, {"w", w}, {"y", y}}); };
  require(x.dtype == DType::kF32 && y.dtype == DType::kF32, "gemm_tile", "x and y must be F32",
          shape);
  require(x.cols == w.cols && y.rows == x.rows && y.cols == w.rows, "gemm_tile",
          "y must be x times w transposed", shape);
  require(x.cols < kLargest && y.cols < kLargest && y.rows <= std::int64_t{65535} * kTile,
          "gemm_tile", "too large", shape);
  if (y.rows == 0 || y.cols == 0) return;
  const dim3 grid{static_cast<unsigned>(ceil_div<std::int64_t>(y.cols, kTile)),
                  static_cast<unsigned>(ceil_div<std::int64_t>(y.rows, kTile)), 1};
  for_float_type(w.dtype, "gemm_tile", shape, [&]<class T>() {
    TRIPHASE_LAUNCH((gemm_tile_kernel<T>), grid, kThreads, 0, stream,
                    static_cast<const float*>(x.data), x.row_stride, static_cast<const T*>(w.data),
                    w.row_stride, bias, accumulate, static_cast<float*>(y.data), y.row_stride,
                    limit, static_cast<int>(y.rows), static_cast<int>(y.cols),
                    static_cast<int>(x.cols));
  });
  check_launched("gemm_tile", shape);
}

}  // namespace triphase::cuda
