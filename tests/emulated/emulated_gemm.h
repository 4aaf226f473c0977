#pragma once

// The library's matrix product on the emulated device: by the CPU's operations, in the stream's
// order. The kernels' own tiles would take seconds on fibers.

#include <cstdint>
#include <memory>
#include <set>
#include <string_view>

#include "base/launch.h"
#include "base/thread_pool.h"
#include "kernels/cuda/gemm.h"
#include "kernels/ops.h"

namespace triphase::emulated {

// `by_rows`: the order of a product's sums depends on the number of rows, as that of cuBLASLt does.
class EmulatedGemm final : public cuda::Gemm {
 public:
  explicit EmulatedGemm(bool by_rows = false);
  ~EmulatedGemm() override;
  [[nodiscard]] std::string_view name() const override { return "emulated GEMM"; }
  [[nodiscard]] bool run(ConstMatrix x, ConstMatrix w, const float* bias, bool accumulate, Matrix y,
                         cuda::StreamHandle stream) override;

 private:
  // What is equal in all products of one kind.
  struct Shape {
    DType x_type = DType::kF32;
    DType w_type = DType::kF32;
    std::int64_t rows = 0;
    std::int64_t cols = 0;
    std::int64_t outputs = 0;
    std::int64_t x_stride = 0;
    std::int64_t w_stride = 0;
    std::int64_t y_stride = 0;
    bool accumulate = false;
    auto operator<=>(const Shape&) const = default;
  };
  static void multiply_shape(EmulatedGemm* gemm, const Shape* shape, const void* x, const void* w,
                             const float* bias, void* y, CUstream_st* stream);
  void multiply(const ConstMatrix& x, const ConstMatrix& w, const float* bias, bool accumulate,
                const Matrix& y);

  std::set<Shape> shapes_;
  bool by_rows_;
  ThreadPool threads_{1};
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Stream> no_stream_;
};

}  // namespace triphase::emulated
