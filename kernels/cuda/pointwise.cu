#include <string>

#include "kernels/cuda/activation_math.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/pointwise.h"
#include "kernels/cuda/soft_cap.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 256;

// One thread per element: rows along x, columns along y.
dim3 elementwise_grid(std::int64_t rows, std::int64_t cols) {
  return {static_cast<unsigned>(rows),
          static_cast<unsigned>(ceil_div<std::int64_t>(cols, kThreads)), 1};
}

__device__ inline std::int64_t column() {
  return static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    gather_table_kernel(const std::int32_t* rows, const SampleResult* drawn, const T* table,
                        std::int64_t table_stride, float scale, bool accumulate, float* y,
                        std::int64_t y_stride, std::int64_t cols) {
  const std::int64_t c = column();
  if (c >= cols) return;
  std::int32_t row = rows[blockIdx.x];
  if (row < 0) row = drawn[~row].token;
  const float value = scale * to_float(table[row * table_stride + c]);
  float* to = y + blockIdx.x * y_stride + c;
  *to = accumulate ? *to + value : value;
}

__global__ void __launch_bounds__(kThreads)
    sum_rows_kernel(const float* x, std::int64_t x_stride, const std::int32_t* rows,
                    const float* factors, int terms, bool accumulate, float* y,
                    std::int64_t y_stride, std::int64_t cols) {
  const std::int64_t c = column();
  if (c >= cols) return;
  rows += static_cast<std::int64_t>(blockIdx.x) * terms;
  factors += static_cast<std::int64_t>(blockIdx.x) * terms;
  float sum = 0.0F;
  for (int i = 0; i < terms; ++i) sum = fma_rn(factors[i], x[rows[i] * x_stride + c], sum);
  float* to = y + blockIdx.x * y_stride + c;
  *to = accumulate ? add_rn(sum, *to) : sum;
}

// One thread per pair of channels, (head, pair) along y.
__global__ void __launch_bounds__(kThreads)
    rope_kernel(float* x, std::int64_t stride, const float* cos_sin, std::int64_t table_stride,
                int heads, int head_dim, int half) {
  const std::int64_t at = column();
  if (at >= static_cast<std::int64_t>(heads) * half) return;
  const auto head = static_cast<int>(at / half);
  const auto pair = static_cast<int>(at % half);
  const float* angles = cos_sin + blockIdx.x * table_stride;
  const float cosine = angles[pair];
  const float sine = angles[half + pair];
  float* first = x + blockIdx.x * stride + static_cast<std::int64_t>(head) * head_dim + pair;
  const float a = first[0];
  const float b = first[half];
  first[0] = sub_rn(mul_rn(a, cosine), mul_rn(b, sine));
  first[half] = add_rn(mul_rn(b, cosine), mul_rn(a, sine));
}

__global__ void __launch_bounds__(kThreads)
    soft_cap_kernel(float* y, std::int64_t stride, std::int64_t cols, float cap,
                    float inverse_cap) {
  const std::int64_t c = column();
  if (c >= cols) return;
  float* at = y + blockIdx.x * stride + c;
  *at = soft_capped(*at, cap, inverse_cap);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    activate_kernel(Activation activation, const float* gate, std::int64_t gate_stride,
                    const float* up, std::int64_t up_stride, T* y, std::int64_t y_stride,
                    std::int64_t cols, std::int64_t y_cols) {
  const std::int64_t c = column();
  if (c >= y_cols) return;
  float value = 0.0F;
  if (c < cols) {
    value = gate[blockIdx.x * gate_stride + c];
    value = up == nullptr ? activated(activation, value)
                          : gated_value(activation, value, up[blockIdx.x * up_stride + c]);
  }
  y[blockIdx.x * y_stride + c] = from_float<T>(value);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    convert_kernel(const float* x, std::int64_t x_stride, std::int64_t x_cols, T* y,
                   std::int64_t y_stride, std::int64_t y_cols) {
  const std::int64_t c = column();
  if (c >= y_cols) return;
  const float value = c < x_cols ? x[blockIdx.x * x_stride + c] : 0.0F;
  y[blockIdx.x * y_stride + c] = from_float<T>(value);
}

bool is_f32(const ConstMatrix& matrix) { return matrix.dtype == DType::kF32; }

bool same_shape(const ConstMatrix& a, const ConstMatrix& b) {
  return a.rows == b.rows && a.cols == b.cols;
}

}  // namespace

void gather_table(const std::int32_t* rows, ConstMatrix table, float scale, bool accumulate,
                  Matrix y, StreamHandle stream, const SampleResult* drawn) {
  const auto shape = [&] { return shape_text({{"table", table}, {"y", y}}); };
  require(is_f32(y) && y.cols == table.cols && (rows != nullptr || y.rows == 0), "gather_table",
          "y must be F32 and as wide as the table", shape);
  if (y.rows == 0 || y.cols == 0) return;
  for_float_type(table.dtype, "gather_table", shape, [&]<class T>() {
    TRIPHASE_LAUNCH((gather_table_kernel<T>), elementwise_grid(y.rows, y.cols), kThreads, 0, stream,
                    rows, drawn, static_cast<const T*>(table.data), table.row_stride, scale,
                    accumulate, static_cast<float*>(y.data), y.row_stride, y.cols);
  });
  check_launched("gather_table", shape);
}

void sum_rows(ConstMatrix x, const std::int32_t* rows, const float* factors, std::int64_t terms,
              bool accumulate, Matrix y, StreamHandle stream) {
  const auto shape = [&] { return shape_text({{"x", x}, {"y", y}}); };
  require(is_f32(x) && is_f32(y) && x.cols == y.cols && terms > 0, "sum_rows",
          "x and y must be F32 and as wide", shape);
  if (y.rows == 0 || y.cols == 0) return;
  TRIPHASE_LAUNCH((sum_rows_kernel), elementwise_grid(y.rows, y.cols), kThreads, 0, stream,
                  static_cast<const float*>(x.data), x.row_stride, rows, factors,
                  static_cast<int>(terms), accumulate, static_cast<float*>(y.data), y.row_stride,
                  y.cols);
  check_launched("sum_rows", shape);
}

void rope(Matrix x, std::int64_t heads, std::int64_t head_dim, std::int64_t rotary_dim,
          ConstMatrix cos_sin, StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"x", x}, {"cos_sin", cos_sin}}) + ", " +
           shape_text({{"heads", heads}, {"head_dim", head_dim}, {"rotary_dim", rotary_dim}});
  };
  require(is_f32(x) && is_f32(cos_sin) && x.cols >= heads * head_dim && rotary_dim % 2 == 0 &&
              rotary_dim <= head_dim && cos_sin.rows == x.rows && cos_sin.cols == rotary_dim,
          "rope", "x must hold the heads, cos_sin a row of an even rotary_dim for each of x",
          shape);
  const std::int64_t half = rotary_dim / 2;
  if (x.rows == 0 || heads * half == 0) return;
  TRIPHASE_LAUNCH((rope_kernel), elementwise_grid(x.rows, heads * half), kThreads, 0, stream,
                  static_cast<float*>(x.data), x.row_stride,
                  static_cast<const float*>(cos_sin.data), cos_sin.row_stride,
                  static_cast<int>(heads), static_cast<int>(head_dim), static_cast<int>(half));
  check_launched("rope", shape);
}

void activate(Activation activation, ConstMatrix gate, ConstMatrix up, Matrix y,
              StreamHandle stream) {
  const auto shape = [&] { return shape_text({{"gate", gate}, {"up", up}, {"y", y}}); };
  require(is_f32(gate) && gate.rows == y.rows && gate.cols <= y.cols &&
              (up.empty() || (is_f32(up) && same_shape(up, gate))),
          "activate", "gate and up must be F32 of one shape, y as wide at least", shape);
  if (y.rows == 0 || y.cols == 0) return;
  for_float_type(y.dtype, "activate", shape, [&]<class T>() {
    TRIPHASE_LAUNCH((activate_kernel<T>), elementwise_grid(y.rows, y.cols), kThreads, 0, stream,
                    activation, static_cast<const float*>(gate.data), gate.row_stride,
                    static_cast<const float*>(up.data), up.row_stride, static_cast<T*>(y.data),
                    y.row_stride, gate.cols, y.cols);
  });
  check_launched("activate", shape);
}

void soft_cap(float cap, Matrix y, StreamHandle stream) {
  const auto shape = [&] { return shape_text({{"y", y}}); };
  require(is_f32(y) && cap > 0.0F, "soft_cap", "y must be F32, the cap above 0", shape);
  if (y.rows == 0 || y.cols == 0) return;
  TRIPHASE_LAUNCH((soft_cap_kernel), elementwise_grid(y.rows, y.cols), kThreads, 0, stream,
                  static_cast<float*>(y.data), y.row_stride, y.cols, cap, 1.0F / cap);
  check_launched("soft_cap", shape);
}

void convert(ConstMatrix x, Matrix y, StreamHandle stream) {
  const auto shape = [&] { return shape_text({{"x", x}, {"y", y}}); };
  require(is_f32(x) && x.rows == y.rows && x.cols <= y.cols && y.dtype != DType::kF32, "convert",
          "from F32 to rows at least as wide of a 16-bit type", shape);
  if (y.rows == 0 || y.cols == 0) return;
  for_float_type(y.dtype, "convert", shape, [&]<class T>() {
    TRIPHASE_LAUNCH((convert_kernel<T>), elementwise_grid(y.rows, y.cols), kThreads, 0, stream,
                    static_cast<const float*>(x.data), x.row_stride, x.cols,
                    static_cast<T*>(y.data), y.row_stride, y.cols);
  });
  check_launched("convert", shape);
}

}  // namespace triphase::cuda
