#include <cmath>
#include <string>

#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/norms.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 256;

// What is written of a row: zeros beyond its columns. Heads of a row lie along the grid's y.
template <class T>
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const float* x, std::int64_t x_stride, const float* weight, float weight_offset,
                    float eps, bool accumulate, T* y, std::int64_t y_stride, int cols, int y_cols) {
  TRIPHASE_SHARED(float, scratch, kBlockReduceWords);
  const std::int64_t head = static_cast<std::int64_t>(blockIdx.y) * cols;
  const float* row = x + blockIdx.x * x_stride + head;
  // In the order of norm_pieces_kernel: the same row has the same bits.
  float squares = 0.0F;
  for (int first = static_cast<int>(threadIdx.x) * 4; first < cols; first += 4 * kThreads) {
    for (int c = smaller(first + 4, cols) - 1; c >= first; --c) {
      squares = fma_rn(row[c], row[c], squares);
    }
  }
  squares = block_sum(squares, scratch);
  const float factor = 1.0F / sqrtf(squares / static_cast<float>(cols) + eps);
  for (int c = static_cast<int>(threadIdx.x); c < y_cols; c += kThreads) {
    float value = c < cols ? row[c] * factor * (weight[c] + weight_offset) : 0.0F;
    T* to = y + blockIdx.x * y_stride + head + c;
    if (accumulate) value = add_rn(value, to_float(*to));  // fused it would have other bits
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

struct NormRows {
  const float* x;
  std::int64_t x_stride;
  const float* weight;
  const float* bias;    // layer norm's; may be null
  float weight_offset;  // RMS norm's
  float eps;
  std::int64_t y_stride;
  int cols;
  int y_cols;
};

__device__ __forceinline__ float4 floats_at(const float* from, bool there) {
  if (!there) return {0.0F, 0.0F, 0.0F, 0.0F};
  const uint4 words = load16(from);
  return {bits_float(words.x), bits_float(words.y), bits_float(words.z), bits_float(words.w)};
}

template <class T>
__device__ __forceinline__ void store_four(T* to, const float4& value) {
  if constexpr (sizeof(T) == 4) {
    store16(to, make_uint4(float_bits(value.x), float_bits(value.y), float_bits(value.z),
                           float_bits(value.w)));
  } else {
    store8(to, make_uint2(pack2<T>(value.x, value.y), pack2<T>(value.z, value.w)));
  }
}

// A row of whole float4 by one block, kept in registers: decoded rows are few, and what they wait
// for is one load of everything.
template <class T, int kPieces, bool kRms>
__global__ void __launch_bounds__(kThreads, kPieces <= 4 ? 3 : 2)
    norm_pieces_kernel(const NormRows rows, T* y) {
  TRIPHASE_SHARED(float, scratch, kBlockReduceWords);
  const float* from = rows.x + blockIdx.x * rows.x_stride;
  T* to = y + blockIdx.x * rows.y_stride;
  float4 value[kPieces];
  float4 weight[kPieces];
  float4 bias[kPieces];
  TRIPHASE_UNROLL
  for (int i = 0; i < kPieces; ++i) {
    const int c = (i * kThreads + static_cast<int>(threadIdx.x)) * 4;
    value[i] = floats_at(from + c, c < rows.cols);
    weight[i] = floats_at(rows.weight + c, c < rows.cols);
    if constexpr (!kRms) bias[i] = floats_at(rows.bias + c, c < rows.cols && rows.bias != nullptr);
  }
  const auto count = static_cast<float>(rows.cols);
  float mean = 0.0F;
  if constexpr (!kRms) {
    TRIPHASE_UNROLL
    for (int i = 0; i < kPieces; ++i) mean += (value[i].x + value[i].y) + (value[i].z + value[i].w);
    mean = block_sum(mean, scratch) / count;
  }
  float squares = 0.0F;
  TRIPHASE_UNROLL
  for (int i = 0; i < kPieces; ++i) {
    float4& v = value[i];
    if constexpr (!kRms) v = {v.x - mean, v.y - mean, v.z - mean, v.w - mean};
    if ((i * kThreads + static_cast<int>(threadIdx.x)) * 4 >= rows.cols) continue;
    squares = fma_rn(v.x, v.x, fma_rn(v.y, v.y, fma_rn(v.z, v.z, fma_rn(v.w, v.w, squares))));
  }
  squares = block_sum(squares, scratch);
  const float factor = 1.0F / sqrtf(squares / count + rows.eps);
  TRIPHASE_UNROLL
  for (int i = 0; i < kPieces; ++i) {
    const int c = (i * kThreads + static_cast<int>(threadIdx.x)) * 4;
    if (c >= rows.y_cols) continue;
    const float4& v = value[i];
    const float4& w = weight[i];
    float4 out{v.x * factor * (w.x + rows.weight_offset), v.y * factor * (w.y + rows.weight_offset),
               v.z * factor * (w.z + rows.weight_offset),
               v.w * factor * (w.w + rows.weight_offset)};
    if constexpr (!kRms) {
      const float4& b = bias[i];
      out = {out.x + b.x, out.y + b.y, out.z + b.z, out.w + b.w};
    }
    store_four(to + c, c < rows.cols ? out : float4{0.0F, 0.0F, 0.0F, 0.0F});
  }
}

// Whether norm_pieces_kernel did it: not in place, and whole pieces on both sides.
template <class T, bool kRms>
bool launch_pieces(const ConstMatrix& x, const NormRows& rows, T* y, StreamHandle stream) {
  constexpr std::int64_t kPiece = 4 * kThreads;
  const auto is_whole = [](const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
  };
  const bool serves = static_cast<const void*>(rows.x) != static_cast<const void*>(y) &&
                      rows.cols % 4 == 0 && rows.y_cols % 4 == 0 && rows.x_stride % 4 == 0 &&
                      rows.y_stride % 4 == 0 && is_whole(rows.x) && is_whole(y) &&
                      is_whole(rows.weight) && is_whole(rows.bias) && rows.y_cols <= 8 * kPiece;
  if (!serves) return false;
  const auto grid = static_cast<unsigned>(x.rows);
  if (rows.y_cols <= 4 * kPiece) {
    TRIPHASE_LAUNCH((norm_pieces_kernel<T, 4, kRms>), grid, kThreads, 0, stream, rows, y);
  } else {
    TRIPHASE_LAUNCH((norm_pieces_kernel<T, 8, kRms>), grid, kThreads, 0, stream, rows, y);
  }
  return true;
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
  const NormRows rows{static_cast<const float*>(x.data),
                      x.row_stride,
                      weight,
                      nullptr,
                      weight_offset,
                      eps,
                      y.row_stride,
                      static_cast<int>(x.cols),
                      static_cast<int>(y.cols)};
  for_float_type(y.dtype, "rms_norm", shape, [&]<class T>() {
    if (launch_pieces<T, true>(x, rows, static_cast<T*>(y.data), stream)) return;
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
  require(heads > 0 && heads <= kMostGridY && x.cols % heads == 0 && x.dtype == DType::kF32 &&
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
  const NormRows rows{static_cast<const float*>(x.data),
                      x.row_stride,
                      weight,
                      bias,
                      0.0F,
                      eps,
                      y.row_stride,
                      static_cast<int>(x.cols),
                      static_cast<int>(y.cols)};
  for_float_type(y.dtype, "layer_norm", shape, [&]<class T>() {
    if (launch_pieces<T, false>(x, rows, static_cast<T*>(y.data), stream)) return;
    TRIPHASE_LAUNCH((layer_norm_kernel<T>), static_cast<unsigned>(x.rows), kThreads, 0, stream,
                    static_cast<const float*>(x.data), x.row_stride, weight, bias, eps,
                    static_cast<T*>(y.data), y.row_stride, static_cast<int>(x.cols),
                    static_cast<int>(y.cols));
  });
  check_launched("layer_norm", shape);
}

}  // namespace triphase::cuda
