#include "kernels/cuda/library_gemm.h"

#include <utility>

#include "base/rounding.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/pointwise.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {

LibraryGemm::LibraryGemm(Device& device, std::unique_ptr<Gemm> gemm, bool deterministic)
    : gemm_(std::move(gemm)), deterministic_(deterministic), rounded_(device) {}

bool LibraryGemm::serves(const ConstMatrix& x, const ConstMatrix& y) const {
  return serves() && y.rows > 0 && y.cols > 0 && x.cols > 0;
}

Matrix LibraryGemm::rounded_rows(const ConstMatrix& x, DType dtype, Stream& stream) {
  const std::int64_t stride = round_up(x.cols, kGemmRowElements);
  std::byte* data =
      rounded_.at_least(static_cast<std::size_t>(rounded_activation_bytes(x.rows, x.cols)), stream);
  return {data, dtype, x.rows, stride, stride};
}

ConstMatrix LibraryGemm::rounded(ConstMatrix x, DType dtype, Stream& stream) {
  const Matrix rows = rounded_rows(x, dtype, stream);
  convert(x, rows, stream.launches());
  return {rows.data, dtype, x.rows, x.cols, rows.row_stride};
}

bool LibraryGemm::run(ConstMatrix x, std::int64_t cols, ConstMatrix w, const float* bias,
                      bool accumulate, Matrix y, StreamHandle handle) {
  require(y.dtype == DType::kF32 && cols == w.cols && y.rows == x.rows && y.cols == w.rows,
          "linear", "F32 y, which must be x times w transposed", [&] {
            return shape_text({{"w", w}, {"y", y}});
          });
  x.cols = cols;
  return gemm_->run(x, w, bias, accumulate, y, handle);
}

}  // namespace triphase::cuda
