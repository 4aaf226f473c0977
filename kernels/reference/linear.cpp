#include <cmath>

#include "kernels/reference/reference_ops.h"

namespace triphase::reference {

double element(const ConstMatrix& matrix, std::int64_t row, std::int64_t col) {
  const auto at = static_cast<std::size_t>(row * matrix.row_stride + col);
  switch (matrix.dtype) {
    case DType::kF64:
      return static_cast<const double*>(matrix.data)[at];
    case DType::kF16:
      return f16_to_f32(static_cast<const std::uint16_t*>(matrix.data)[at]);
    case DType::kBF16:
      return bf16_to_f32(static_cast<const std::uint16_t*>(matrix.data)[at]);
    default:
      return static_cast<const float*>(matrix.data)[at];
  }
}

Values linear(const ConstMatrix& x, const ConstMatrix& w, const float* bias,
              const ConstMatrix& previous) {
  Values result;
  for (std::int64_t m = 0; m < x.rows; ++m) {
    for (std::int64_t n = 0; n < w.rows; ++n) {
      double sum = bias != nullptr ? bias[n] : 0.0;
      double magnitude = std::abs(sum);
      if (!previous.empty()) {
        sum += element(previous, m, n);
        magnitude += std::abs(element(previous, m, n));
      }
      for (std::int64_t k = 0; k < x.cols; ++k) {
        const double term = element(x, m, k) * element(w, n, k);
        sum += term;
        magnitude += std::abs(term);
      }
      result.value.push_back(sum);
      result.magnitude.push_back(magnitude);
    }
  }
  return result;
}

}  // namespace triphase::reference
