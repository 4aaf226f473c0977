#include <string>

#include "kernels/cuda/activation_math.h"
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

// The row of w at a line of the block, -1: none. With a gate a thread's lines are two of it and the
// two of the same columns of up.
__device__ inline int weight_row(bool gated, int cols, int line) {
  const int first = static_cast<int>(blockIdx.x) * kTile;
  if (!gated) return first + line < cols ? first + line : -1;
  const int col = (first + line / kOwn * kOwn) / 2 + line % 2;
  return col < cols ? line % kOwn / 2 * cols + col : -1;
}

template <class T, bool kGrouped, class X>
__global__ void __launch_bounds__(kThreads)
    gemm_tile_kernel(const X* x, std::int64_t x_stride, const T* w, std::int64_t w_stride,
                     const float* bias, bool accumulate, float* y, std::int64_t y_stride,
                     const RowLimit limit, const RowGroups groups, int most_rows, int cols,
                     int depth) {
  TRIPHASE_SHARED(float, x_tile, kDepth* kStride);
  TRIPHASE_SHARED(float, w_tile, kDepth* kStride);
  const int block_row = static_cast<int>(blockIdx.y);
  const RowTile part = kGrouped ? groups.tiles[block_row]
                                : RowTile{0, block_row * kTile, limited_rows(limit, most_rows), 0};
  if (part.first >= part.end) return;
  const bool gated = kGrouped && groups.gated;
  const std::int64_t first_w = part.group * (gated ? std::int64_t{2} * cols : cols);
  w += first_w * w_stride;
  if (bias != nullptr) bias += first_w;
  const int thread = static_cast<int>(threadIdx.x);
  const int own_col = thread % (kTile / kOwn) * kOwn;
  const int own_row = thread / (kTile / kOwn) * kOwn;
  float sums[kOwn][kOwn] = {};
  for (int begin = 0; begin < depth; begin += kDepth) {
    for (int i = thread; i < kTile * kDepth; i += kThreads) {
      const int line = i / kDepth;
      const int k = i % kDepth;
      const bool inside = begin + k < depth;
      int row = part.first + line;
      const bool there = inside && row < part.end;
      if (kGrouped && there && groups.x_rows != nullptr) row = groups.x_rows[row];
      const int w_row = weight_row(gated, cols, line);
      x_tile[k * kStride + line] = there ? to_float(x[row * x_stride + begin + k]) : 0.0F;
      w_tile[k * kStride + line] =
          inside && w_row >= 0 ? to_float(w[w_row * w_stride + begin + k]) : 0.0F;
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
      if (gated && j >= kOwn / 2) continue;
      const int row = part.first + own_row + i;
      const int line = static_cast<int>(blockIdx.x) * kTile + own_col;
      const int col = (gated ? line / 2 : line) + j;
      if (row >= part.end || col >= cols) continue;
      float* to = y + row * y_stride + col;
      float value = sums[i][j] + (bias == nullptr ? 0.0F : bias[col]);
      if (gated) {
        const float up =
            sums[i][(j + kOwn / 2) % kOwn] + (bias == nullptr ? 0.0F : bias[cols + col]);
        *to = gated_value(groups.activation, value, up);
        continue;
      }
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
  require((x.dtype == DType::kF32 || x.dtype == w.dtype) && y.dtype == DType::kF32, "gemm_tile",
          "y must be F32, x F32 or of w's type", shape);
  require(x.cols == w.cols && y.rows == x.rows && y.cols == w.rows, "gemm_tile",
          "y must be x times w transposed", shape);
  require(x.cols < kLargest && y.cols < kLargest && y.rows <= kMostGridY * kTile, "gemm_tile",
          "too large", shape);
  if (y.rows == 0 || y.cols == 0) return;
  const dim3 grid{static_cast<unsigned>(ceil_div<std::int64_t>(y.cols, kTile)),
                  static_cast<unsigned>(ceil_div<std::int64_t>(y.rows, kTile)), 1};
  for_float_type(w.dtype, "gemm_tile", shape, [&]<class T>() {
    const auto launch = [&]<class X>() {
      TRIPHASE_LAUNCH((gemm_tile_kernel<T, false, X>), grid, kThreads, 0, stream,
                      static_cast<const X*>(x.data), x.row_stride, static_cast<const T*>(w.data),
                      w.row_stride, bias, accumulate, static_cast<float*>(y.data), y.row_stride,
                      limit, RowGroups{}, static_cast<int>(y.rows), static_cast<int>(y.cols),
                      static_cast<int>(x.cols));
    };
    if (x.dtype == DType::kF32) {
      launch.template operator()<float>();
    } else {
      launch.template operator()<T>();
    }
  });
  check_launched("gemm_tile", shape);
}

void gemm_tile_groups(ConstMatrix x, ConstMatrix w, const RowGroups& groups, Matrix y,
                      StreamHandle stream) {
  const auto shape = [&] { return shape_text({{"x", x}, {"w", w}, {"y", y}}); };
  const std::int64_t lines = groups.gated ? 2 * y.cols : y.cols;
  const dim3 grid{static_cast<unsigned>(ceil_div<std::int64_t>(lines, kTile)),
                  static_cast<unsigned>(groups.tile_count), 1};
  for_float_type(w.dtype, "gemm_tile", shape, [&]<class T>() {
    TRIPHASE_LAUNCH((gemm_tile_kernel<T, true, float>), grid, kThreads, 0, stream,
                    static_cast<const float*>(x.data), x.row_stride, static_cast<const T*>(w.data),
                    w.row_stride, groups.bias, false, static_cast<float*>(y.data), y.row_stride,
                    RowLimit{}, groups, static_cast<int>(y.rows), static_cast<int>(y.cols),
                    static_cast<int>(x.cols));
  });
  check_launched("gemm_tile", shape);
}

}  // namespace triphase::cuda
