#include "tests/emulated/emulated_gemm.h"

#include <cstddef>
#include <vector>

#include "base/launch.h"
#include "kernels/cpu/cpu_ops.h"
#include "memory/host_device.h"

namespace triphase::emulated {

EmulatedGemm::EmulatedGemm(bool by_rows)
    : by_rows_(by_rows), ops_(make_cpu_ops(threads_)), no_stream_(HostDevice().make_stream()) {}

EmulatedGemm::~EmulatedGemm() = default;

bool EmulatedGemm::run(ConstMatrix x, ConstMatrix w, const float* bias, bool accumulate, Matrix y,
                       cuda::StreamHandle stream) {
  const Shape* shape = &*shapes_
                             .insert({x.dtype, w.dtype, x.rows, x.cols, w.rows, x.row_stride,
                                      w.row_stride, y.row_stride, accumulate})
                             .first;
  add_call<&EmulatedGemm::multiply_shape>(*stream, "a product", this, shape, x.data, w.data, bias,
                                          y.data);
  return true;
}

void EmulatedGemm::multiply_shape(EmulatedGemm* gemm, const Shape* shape, const void* x,
                                  const void* w, const float* bias, void* y, CUstream_st*) {
  gemm->multiply({x, shape->x_type, shape->rows, shape->cols, shape->x_stride},
                 {w, shape->w_type, shape->outputs, shape->cols, shape->w_stride}, bias,
                 shape->accumulate, {y, DType::kF32, shape->rows, shape->outputs, shape->y_stride});
}

void EmulatedGemm::multiply(const ConstMatrix& x, const ConstMatrix& w, const float* bias,
                            bool accumulate, const Matrix& y) {
  // The CPU's product takes F32 activations.
  std::vector<float> wide(static_cast<std::size_t>(x.rows * x.cols));
  for (std::int64_t row = 0; row < x.rows; ++row) {
    for (std::int64_t col = 0; col < x.cols; ++col) {
      const std::int64_t at = row * x.row_stride + col;
      float value = 0.0F;
      if (x.dtype == DType::kF32) {
        value = static_cast<const float*>(x.data)[at];
      } else {
        const std::uint16_t bits = static_cast<const std::uint16_t*>(x.data)[at];
        value = x.dtype == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
      }
      wide[static_cast<std::size_t>(row * x.cols + col)] = value;
    }
  }
  // The first `end` terms of every sum, then the others.
  const std::int64_t end = by_rows_ && x.rows % 2 == 0 ? x.cols / 2 : x.cols;
  const auto add = [&](std::int64_t begin, std::int64_t terms, const float* with, bool to) {
    ConstMatrix part = w;
    const auto skipped = static_cast<std::size_t>(begin) * dtype_bytes(w.dtype);
    part.data = static_cast<const std::byte*>(w.data) + skipped;
    part.cols = terms;
    ops_->linear({wide.data() + begin, DType::kF32, x.rows, terms, x.cols}, part, with, to, y,
                 *no_stream_);
  };
  add(0, end, bias, accumulate);
  if (end < x.cols) add(end, x.cols - end, nullptr, true);
}

}  // namespace triphase::emulated
