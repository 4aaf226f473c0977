#include <string>

#include "kernels/cuda/gemm_rows.h"
#include "kernels/cuda/gemm_tile.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/row_limit.h"

namespace triphase::cuda {
namespace {

constexpr int kRows = 128;  // of y per block: 32 of each of 4 warps
constexpr int kCols = 64;   // of y per block: 32 of each of 2 warps
constexpr int kDepth = 32;  // columns of x and w per step
constexpr int kThreads = 256;
constexpr int kStages = 4;          // of w: three are on their way while one is multiplied
constexpr int kPitch = kDepth + 8;  // so that the eight rows of a tile lie in other banks
constexpr int kXTile = kRows * kPitch;
constexpr int kWTile = kCols * kPitch;

template <class T>
struct RowsShape {
  const float* x;
  std::int64_t x_stride;
  const T* w;
  std::int64_t w_stride;
  const float* bias;
  RowLimit limit;
  float* y;
  std::int64_t y_stride;
  int rows, cols, depth;
};

// What a thread carries of the next step's x: half a row's columns.
struct CarriedX {
  uint4 part[4];
};

__device__ __forceinline__ void load_x(const float* row, bool there, int k, int depth,
                                       CarriedX& carried) {
  TRIPHASE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const bool valid = there && k + 4 * i < depth;
    carried.part[i] = valid ? load16(row + k + 4 * i) : make_uint4(0U, 0U, 0U, 0U);
  }
}

template <class T>
__device__ __forceinline__ void store_x(const CarriedX& carried, T* to) {
  TRIPHASE_UNROLL
  for (int i = 0; i < 2; ++i) {
    const uint4 a = carried.part[2 * i];
    const uint4 b = carried.part[2 * i + 1];
    store16(to + 8 * i, make_uint4(pack2<T>(bits_float(a.x), bits_float(a.y)),
                                   pack2<T>(bits_float(a.z), bits_float(a.w)),
                                   pack2<T>(bits_float(b.x), bits_float(b.y)),
                                   pack2<T>(bits_float(b.z), bits_float(b.w))));
  }
}

// One step: a warp's 32 x 32 of y, of its first 16 rows alone where the others are not there.
template <class T>
__device__ __forceinline__ void multiply_step(const T* x_tile, const T* w_tile, int row_tiles,
                                              float (&sums)[2][4][4]) {
  TRIPHASE_UNROLL
  for (int k = 0; k < kDepth; k += 16) {
    unsigned w[2][4];
    TRIPHASE_UNROLL
    for (int pair = 0; pair < 2; ++pair) {
      const int line = pair * 16 + lane_id() / 16 * 8 + lane_id() % 8;
      load_matrices(w[pair], w_tile + line * kPitch + k + lane_id() / 8 % 2 * 8);
    }
    TRIPHASE_UNROLL
    for (int tile = 0; tile < 2; ++tile) {
      if (tile >= row_tiles) continue;
      unsigned x[4];
      const int line = tile * 16 + lane_id() / 8 % 2 * 8 + lane_id() % 8;
      load_matrices(x, x_tile + line * kPitch + k + lane_id() / 16 * 8);
      TRIPHASE_UNROLL
      for (int pair = 0; pair < 2; ++pair) {
        multiply_tiles<T>(sums[tile][2 * pair], x, {w[pair][0], w[pair][1]});
        multiply_tiles<T>(sums[tile][2 * pair + 1], x, {w[pair][2], w[pair][3]});
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) gemm_rows_kernel(const RowsShape<T> shape) {
  TRIPHASE_SHARED(uint4, x_words, 2 * kXTile / 8);
  TRIPHASE_SHARED(uint4, w_words, kStages * kWTile / 8);
  T* x_tiles = reinterpret_cast<T*>(x_words);
  T* w_tiles = reinterpret_cast<T*>(w_words);
  const int rows = limited_rows(shape.limit, shape.rows);
  const int first_row = static_cast<int>(blockIdx.y) * kRows;
  if (first_row >= rows) return;
  const int first_col = static_cast<int>(blockIdx.x) * kCols;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = uniform_warp_id();
  const int warp_row = warp / 2 * 32;
  const int warp_col = warp % 2 * 32;
  const int row_tiles = smaller(2, ceil_div(larger(0, rows - first_row - warp_row), 16));

  const int x_line = thread / 2;
  const int x_part = thread % 2 * 16;
  const bool x_there = first_row + x_line < rows;
  const float* x_row =
      shape.x + static_cast<std::int64_t>(x_there ? first_row + x_line : 0) * shape.x_stride;
  const int w_line = thread / 4;
  const int w_part = thread % 4 * 8;
  const bool w_there = first_col + w_line < shape.cols;
  const T* w_row =
      shape.w + static_cast<std::int64_t>(w_there ? first_col + w_line : 0) * shape.w_stride;
  const int steps = ceil_div(shape.depth, kDepth);
  const auto copy_w = [&](int step) {
    const int k = step * kDepth + w_part;
    const bool valid = w_there && k < shape.depth;
    copy_async16(w_tiles + step % kStages * kWTile + w_line * kPitch + w_part,
                 w_row + (valid ? k : 0), valid);
  };

  TRIPHASE_UNROLL
  for (int step = 0; step < kStages - 1; ++step) {
    if (step < steps) copy_w(step);
    copy_async_commit();
  }
  CarriedX carried;
  load_x(x_row, x_there, x_part, shape.depth, carried);
  float sums[2][4][4] = {};
  for (int step = 0; step < steps; ++step) {
    T* x_tile = x_tiles + step % 2 * kXTile;
    store_x(carried, x_tile + x_line * kPitch + x_part);
    load_x(x_row, x_there, (step + 1) * kDepth + x_part, shape.depth, carried);
    copy_async_wait<kStages - 2>();
    // Also: what was multiplied in the step before may be overwritten.
    __syncthreads();
    if (step + kStages - 1 < steps) copy_w(step + kStages - 1);
    copy_async_commit();
    multiply_step(x_tile + warp_row * kPitch, w_tiles + step % kStages * kWTile + warp_col * kPitch,
                  row_tiles, sums);
  }

  TRIPHASE_UNROLL
  for (int tile = 0; tile < 2; ++tile) {
    TRIPHASE_UNROLL
    for (int column = 0; column < 4; ++column) {
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int row = first_row + warp_row + tile * 16 + i / 2 * 8 + lane_id() / 4;
        const int col = first_col + warp_col + column * 8 + lane_id() % 4 * 2 + i % 2;
        if (row >= rows || col >= shape.cols) continue;
        const float bias = shape.bias == nullptr ? 0.0F : shape.bias[col];
        shape.y[row * shape.y_stride + col] = sums[tile][column][i] + bias;
      }
    }
  }
}

bool whole_vectors(const ConstMatrix& matrix, std::int64_t elements) {
  return reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0 &&
         matrix.row_stride % elements == 0 && matrix.cols % elements == 0;
}

template <class T>
void launch(const ConstMatrix& x, const ConstMatrix& w, const float* bias, const RowLimit& limit,
            const Matrix& y, StreamHandle stream) {
  const RowsShape<T> shape{static_cast<const float*>(x.data),
                           x.row_stride,
                           static_cast<const T*>(w.data),
                           w.row_stride,
                           bias,
                           limit,
                           static_cast<float*>(y.data),
                           y.row_stride,
                           static_cast<int>(y.rows),
                           static_cast<int>(y.cols),
                           static_cast<int>(x.cols)};
  const dim3 grid(static_cast<unsigned>(ceil_div<std::int64_t>(y.cols, kCols)),
                  static_cast<unsigned>(ceil_div<std::int64_t>(y.rows, kRows)));
  TRIPHASE_LAUNCH((gemm_rows_kernel<T>), grid, kThreads, 0, stream, shape);
}

}  // namespace

void gemm_rows(ConstMatrix x, ConstMatrix w, const float* bias, const RowLimit& limit, Matrix y,
               StreamHandle stream) {
  // The same for all of a product's rows.
  const bool on_tensor_cores = (w.dtype == DType::kF16 || w.dtype == DType::kBF16) &&
                               whole_vectors(w, 8) && whole_vectors(x, 4);
  if (!on_tensor_cores) return gemm_tile(x, w, bias, false, y, stream, limit);
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  const auto shape = [&] { return shape_text({{"x", x}, {"w", w}, {"y", y}}); };
  require(x.dtype == DType::kF32 && y.dtype == DType::kF32 && x.cols == w.cols &&
              y.rows == x.rows && y.cols == w.rows,
          "gemm_rows", "F32 x and y, y must be x times w transposed", shape);
  require(x.cols < kLargest && y.cols < kLargest && y.rows <= std::int64_t{65535} * kRows,
          "gemm_rows", "too large", shape);
  if (y.rows == 0 || y.cols == 0) return;
  if (w.dtype == DType::kF16) {
    launch<Half>(x, w, bias, limit, y, stream);
  } else {
    launch<BFloat16>(x, w, bias, limit, y, stream);
  }
  check_launched("gemm_rows", shape);
}

}  // namespace triphase::cuda
