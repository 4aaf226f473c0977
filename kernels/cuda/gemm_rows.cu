#include <string>
#include <type_traits>

#include "kernels/cuda/activation_math.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/gemm_rows.h"
#include "kernels/cuda/gemm_tile.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/row_limit.h"

namespace triphase::cuda {
namespace {

constexpr int kDepth = 32;          // columns of x and w per step
constexpr int kPitch = kDepth + 8;  // so that the eight rows of a tile lie in other banks

// A block's part of y: warps of 16 * kWarpTiles rows and 32 lines (rows of w) each. While a step is
// multiplied, kStages - 1 steps of w are on their way.
template <int kRowWarps, int kWarpTiles, int kLineWarps, int kStageCount, bool kOfGroups>
struct Tile {
  static constexpr int kRowTiles = kWarpTiles;
  static constexpr int kRows = kRowWarps * 16 * kWarpTiles;
  static constexpr int kLines = kLineWarps * 32;
  static constexpr int kWarpsAlongLines = kLineWarps;
  static constexpr int kThreads = kRowWarps * kLineWarps * kWarpSize;
  static constexpr int kStages = kStageCount;
  static constexpr bool kGrouped = kOfGroups;
  static constexpr int kXTile = kRows * kPitch;
  static constexpr int kWTile = kLines * kPitch;
  // Of a step's x and w, by a thread.
  static constexpr int kXVectors = kRows * kDepth / 4 / kThreads;
  static constexpr int kWVectors = kLines * kDepth / 8 / kThreads;
};
using RowsTile = Tile<4, 2, 2, 4, false>;
using FewRowsTile = Tile<1, 1, 4, 4, true>;
using ManyRowsTile = Tile<2, 2, 4, 3, true>;

template <class T>
struct RowsShape {
  const float* x;
  std::int64_t x_stride;
  const T* w;
  std::int64_t w_stride;
  const float* bias;
  RowLimit limit;
  RowGroups groups;
  float* y;
  std::int64_t y_stride;
  int rows, cols, depth;
};

// What a thread carries of the next step's x: consecutive columns of a row.
template <int kVectors>
struct CarriedX {
  uint4 part[kVectors];
};

template <int kVectors>
__device__ __forceinline__ void load_x(const float* row, bool there, int k, int depth,
                                       CarriedX<kVectors>& carried) {
  TRIPHASE_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    const bool valid = there && k + 4 * i < depth;
    carried.part[i] = valid ? load16(row + k + 4 * i) : make_uint4(0U, 0U, 0U, 0U);
  }
}

template <class T>
__device__ __forceinline__ uint2 pack4(const uint4& a) {
  return make_uint2(pack2<T>(bits_float(a.x), bits_float(a.y)),
                    pack2<T>(bits_float(a.z), bits_float(a.w)));
}

template <class T, int kVectors>
__device__ __forceinline__ void store_x(const CarriedX<kVectors>& carried, T* to) {
  if constexpr (kVectors == 1) {
    store8(to, pack4<T>(carried.part[0]));
  } else {
    TRIPHASE_UNROLL
    for (int i = 0; i < kVectors; i += 2) {
      const uint2 a = pack4<T>(carried.part[i]);
      const uint2 b = pack4<T>(carried.part[i + 1]);
      store16(to + 4 * i, make_uint4(a.x, a.y, b.x, b.y));
    }
  }
}

// One step: a warp's rows times 32 lines, of its first 16 rows alone where the others are not
// there.
template <class T, int kRowTiles>
__device__ __forceinline__ void multiply_step(const T* x_tile, const T* w_tile, int row_tiles,
                                              float (&sums)[kRowTiles][4][4]) {
  TRIPHASE_UNROLL
  for (int k = 0; k < kDepth; k += 16) {
    unsigned w[2][4];
    TRIPHASE_UNROLL
    for (int pair = 0; pair < 2; ++pair) {
      const int line = pair * 16 + lane_id() / 16 * 8 + lane_id() % 8;
      load_matrices(w[pair], w_tile + line * kPitch + k + lane_id() / 8 % 2 * 8);
    }
    TRIPHASE_UNROLL
    for (int tile = 0; tile < kRowTiles; ++tile) {
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

// The rows of y that a block writes, and the group whose weights they take.
template <class Tile, class T>
__device__ inline RowTile rows_of_block(const RowsShape<T>& shape) {
  const int block = static_cast<int>(blockIdx.y);
  if constexpr (Tile::kGrouped) return shape.groups.tiles[block];
  return {0, block * Tile::kRows, limited_rows(shape.limit, shape.rows), 0};
}

// The row of a group's weights at a line of the block, -1: none. With a gate sixteen lines of it
// come before the sixteen of the same columns of up, so that one thread sums both.
template <class Tile>
__device__ inline int weight_row(bool gated, int cols, int line) {
  const int first = static_cast<int>(blockIdx.x) * Tile::kLines;
  if (!Tile::kGrouped || !gated) return first + line < cols ? first + line : -1;
  const int col = first / 2 + line / 32 * 16 + line % 16;
  return col < cols ? line % 32 / 16 * cols + col : -1;
}

// A warp's sums into y, from row first_row and line first_line of all on; `bias`: of the rows of w.
template <class Tile, class T>
__device__ inline void write_sums(const RowsShape<T>& shape,
                                  const float (&sums)[Tile::kRowTiles][4][4], const float* bias,
                                  int first_row, int end_row, int first_line) {
  const bool gated = Tile::kGrouped && shape.groups.gated;
  const int first_col = gated ? first_line / 2 : first_line;
  TRIPHASE_UNROLL
  for (int tile = 0; tile < Tile::kRowTiles; ++tile) {
    TRIPHASE_UNROLL
    for (int column = 0; column < 4; ++column) {
      if (gated && column >= 2) continue;
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int row = first_row + tile * 16 + i / 2 * 8 + lane_id() / 4;
        const int col = first_col + column * 8 + lane_id() % 4 * 2 + i % 2;
        if (row >= end_row || col >= shape.cols) continue;
        float value = sums[tile][column][i] + (bias == nullptr ? 0.0F : bias[col]);
        if (gated) {
          const float up =
              sums[tile][(column + 2) % 4][i] + (bias == nullptr ? 0.0F : bias[shape.cols + col]);
          value = gated_value(shape.groups.activation, value, up);
        }
        shape.y[row * shape.y_stride + col] = value;
      }
    }
  }
}

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads) gemm_rows_kernel(const RowsShape<T> shape) {
  TRIPHASE_SHARED(uint4, x_words, 2 * Tile::kXTile / 8);
  TRIPHASE_SHARED(uint4, w_words, Tile::kStages * Tile::kWTile / 8);
  T* x_tiles = reinterpret_cast<T*>(x_words);
  T* w_tiles = reinterpret_cast<T*>(w_words);
  const RowTile part = rows_of_block<Tile>(shape);
  if (part.first >= part.end) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = uniform_warp_id();
  const int warp_row = warp / Tile::kWarpsAlongLines * 16 * Tile::kRowTiles;
  const int warp_line = warp % Tile::kWarpsAlongLines * 32;
  const int row_tiles =
      smaller(Tile::kRowTiles, ceil_div(larger(0, part.end - part.first - warp_row), 16));

  constexpr int kLineThreads = kDepth / (4 * Tile::kXVectors);  // that load a row of x
  const int x_line = thread / kLineThreads;
  const int x_part = thread % kLineThreads * 4 * Tile::kXVectors;
  const bool x_there = part.first + x_line < part.end;
  std::int64_t from = x_there ? part.first + x_line : 0;
  if (Tile::kGrouped && x_there && shape.groups.x_rows != nullptr) from = shape.groups.x_rows[from];
  const float* x_row = shape.x + from * shape.x_stride;
  const bool gated = Tile::kGrouped && shape.groups.gated;
  const std::int64_t group_rows = gated ? std::int64_t{2} * shape.cols : shape.cols;
  const T* group_w = shape.w + part.group * group_rows * shape.w_stride;
  const int w_part = thread % 4 * 8;
  int w_rows[Tile::kWVectors];
  TRIPHASE_UNROLL
  for (int i = 0; i < Tile::kWVectors; ++i) {
    w_rows[i] = weight_row<Tile>(gated, shape.cols, (thread + i * Tile::kThreads) / 4);
  }
  const int steps = ceil_div(shape.depth, kDepth);
  const auto copy_w = [&](int step) {
    const int k = step * kDepth + w_part;
    T* to = w_tiles + step % Tile::kStages * Tile::kWTile + w_part;
    TRIPHASE_UNROLL
    for (int i = 0; i < Tile::kWVectors; ++i) {
      const bool valid = w_rows[i] >= 0 && k < shape.depth;
      copy_async16(to + (thread + i * Tile::kThreads) / 4 * kPitch,
                   group_w + (valid ? w_rows[i] * shape.w_stride + k : 0), valid);
    }
  };

  TRIPHASE_UNROLL
  for (int step = 0; step < Tile::kStages - 1; ++step) {
    if (step < steps) copy_w(step);
    copy_async_commit();
  }
  CarriedX<Tile::kXVectors> carried;
  load_x(x_row, x_there, x_part, shape.depth, carried);
  float sums[Tile::kRowTiles][4][4] = {};
  for (int step = 0; step < steps; ++step) {
    T* x_tile = x_tiles + step % 2 * Tile::kXTile;
    store_x(carried, x_tile + x_line * kPitch + x_part);
    load_x(x_row, x_there, (step + 1) * kDepth + x_part, shape.depth, carried);
    copy_async_wait<Tile::kStages - 2>();
    // Also: what was multiplied in the step before may be overwritten.
    __syncthreads();
    if (step + Tile::kStages - 1 < steps) copy_w(step + Tile::kStages - 1);
    copy_async_commit();
    multiply_step(x_tile + warp_row * kPitch,
                  w_tiles + step % Tile::kStages * Tile::kWTile + warp_line * kPitch, row_tiles,
                  sums);
  }
  const float* bias = shape.bias;
  if (Tile::kGrouped && bias != nullptr) {
    bias += part.group * (shape.groups.gated ? std::int64_t{2} * shape.cols : shape.cols);
  }
  write_sums<Tile>(shape, sums, bias, part.first + warp_row, part.end,
                   static_cast<int>(blockIdx.x) * Tile::kLines + warp_line);
}

bool whole_vectors(const ConstMatrix& matrix, std::int64_t elements) {
  return reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0 &&
         matrix.row_stride % elements == 0 && matrix.cols % elements == 0;
}

template <class T>
RowsShape<T> shape_of(const ConstMatrix& x, const ConstMatrix& w, const Matrix& y) {
  RowsShape<T> shape{};
  shape.x = static_cast<const float*>(x.data);
  shape.x_stride = x.row_stride;
  shape.w = static_cast<const T*>(w.data);
  shape.w_stride = w.row_stride;
  shape.y = static_cast<float*>(y.data);
  shape.y_stride = y.row_stride;
  shape.rows = static_cast<int>(y.rows);
  shape.cols = static_cast<int>(y.cols);
  shape.depth = static_cast<int>(x.cols);
  return shape;
}

template <class Tile, class T>
void launch(const RowsShape<T>& shape, std::int64_t lines, std::int64_t row_blocks,
            StreamHandle stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div<std::int64_t>(lines, Tile::kLines)),
                  static_cast<unsigned>(row_blocks));
  TRIPHASE_LAUNCH((gemm_rows_kernel<T, Tile>), grid, Tile::kThreads, 0, stream, shape);
}

bool on_tensor_cores(const ConstMatrix& x, const ConstMatrix& w) {
  return (w.dtype == DType::kF16 || w.dtype == DType::kBF16) && whole_vectors(w, 8) &&
         whole_vectors(x, 4);
}

constexpr std::int64_t kLargest = std::int64_t{1} << 30;

}  // namespace

void gemm_rows(ConstMatrix x, ConstMatrix w, const float* bias, const RowLimit& limit, Matrix y,
               StreamHandle stream) {
  // The same for all of a product's rows.
  if (!on_tensor_cores(x, w)) return gemm_tile(x, w, bias, false, y, stream, limit);
  const auto shape = [&] { return shape_text({{"x", x}, {"w", w}, {"y", y}}); };
  require(x.dtype == DType::kF32 && y.dtype == DType::kF32 && x.cols == w.cols &&
              y.rows == x.rows && y.cols == w.rows,
          "gemm_rows", "F32 x and y, y must be x times w transposed", shape);
  require(x.cols < kLargest && y.cols < kLargest && y.rows <= kMostGridY * RowsTile::kRows,
          "gemm_rows", "too large", shape);
  if (y.rows == 0 || y.cols == 0) return;
  for_float_type(w.dtype, "gemm_rows", shape, [&]<class T>() {
    if constexpr (!std::is_same_v<T, float>) {
      RowsShape<T> rows = shape_of<T>(x, w, y);
      rows.bias = bias;
      rows.limit = limit;
      launch<RowsTile>(rows, y.cols, ceil_div<std::int64_t>(y.rows, RowsTile::kRows), stream);
    }
  });
  check_launched("gemm_rows", shape);
}

void gemm_groups(ConstMatrix x, ConstMatrix w, const RowGroups& groups, Matrix y,
                 StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"x", x}, {"w", w}, {"y", y}}) + ", " +
           shape_text({{"groups", groups.count}, {"tiles", groups.tile_count}});
  };
  const std::int64_t lines = groups.gated ? 2 * y.cols : y.cols;
  require(x.dtype == DType::kF32 && y.dtype == DType::kF32 && x.cols == w.cols &&
              w.rows == groups.count * lines && (groups.x_rows != nullptr || x.rows == y.rows),
          "gemm_groups", "F32 x and y, y must be x times a group's w transposed", shape);
  require(x.cols < kLargest && lines < kLargest && y.rows < kLargest &&
              groups.tile_count <= kMostGridY && groups.tile_rows <= ManyRowsTile::kRows,
          "gemm_groups", "too large", shape);
  if (y.rows == 0 || y.cols == 0) return;
  if (!on_tensor_cores(x, w)) return gemm_tile_groups(x, w, groups, y, stream);
  for_float_type(w.dtype, "gemm_groups", shape, [&]<class T>() {
    if constexpr (!std::is_same_v<T, float>) {
      RowsShape<T> rows = shape_of<T>(x, w, y);
      rows.groups = groups;
      rows.bias = groups.bias;
      if (groups.tile_rows <= FewRowsTile::kRows) {
        launch<FewRowsTile>(rows, lines, groups.tile_count, stream);
      } else {
        launch<ManyRowsTile>(rows, lines, groups.tile_count, stream);
      }
    }
  });
  check_launched("gemm_groups", shape);
}

}  // namespace triphase::cuda
