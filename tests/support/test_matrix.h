#pragma once

// Numbers for tests of kernels: NaN wherever nothing was set, and how far results may be from
// float64.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/reference/reference_ops.h"

// How far a kernel may be from float64, derived rather than tuned. u is the unit roundoff of F32;
// the factors multiply the reference's `magnitude` (the sum of the absolute terms).
namespace triphase::tolerance {

inline constexpr double kUnit = 0x1p-24;

// A sum of `terms` products in any order: every addition rounds at most once along a path of at
// most `terms` additions, plus the product, bias, old value and final rounding.
inline double dot(std::int64_t terms) { return static_cast<double>(terms + 4) * kUnit; }

// Rotation: two products and their sum; the magnitude holds both products.
inline constexpr double kRotation = 3 * kUnit;

// Activations: exp is good to 3 units in the last place (6 u), its argument to 4 u of its size
// (x e^-x stays below 0.37), the erfc polynomial to 6 u; sums, quotient and product 4 u.
inline constexpr double kActivation = 18 * kUnit;

// Norms: the sum of squares (its square root halves the error), the mean inside each term, and
// root, quotient and products.
inline double norm(std::int64_t cols) { return static_cast<double>(cols + 12) * kUnit; }

// Attention over `tokens` tokens. Scores: scaling q (2 u) and a dot product of `dim` terms, as a
// share of the largest absolute score; a score error d changes weights by e^2d at most, numerator
// and denominator together. Weights: 2^x to 4 u. Sums over tokens for numerator and denominator,
// each tile and split adding three roundings of rescaling.
inline double attention(std::int64_t dim, std::int64_t tokens, double score_magnitude) {
  const double score_error = static_cast<double>(dim + 8) * kUnit * score_magnitude;
  const double steps = static_cast<double>(tokens / 64 + tokens / 512 + 2);
  return 2.1 * score_error + (2.0 * static_cast<double>(tokens) + 6.0 * steps + 16.0) * kUnit;
}

// INT8 and selected tokens: scaling q by a block's scales, its constant (another dot product of
// `dim` terms) and the subtraction; for values, the sum of weights, its product with the zero
// point, the subtraction and the product with lambda. Magnitudes hold |lambda| (code + |zero|).
inline double int8_attention(std::int64_t dim, std::int64_t tokens, double score_magnitude) {
  return attention(2 * dim + 4, tokens, score_magnitude) + 8 * kUnit;
}

}  // namespace triphase::tolerance

namespace triphase {

inline constexpr DType kStoredTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

// Elements of one type in exactly as much memory as they need, so that sanitizers see overruns. All
// bits are set at first: NaN in every float type.
class Elements {
 public:
  Elements(DType dtype, std::int64_t count)
      : dtype_(dtype),
        bytes_(static_cast<std::size_t>(count) * dtype_bytes(dtype), std::byte{0xFF}) {}

  void set(std::int64_t index, float value) {
    const std::uint32_t bits = reference::stored_bits(value, dtype_);
    std::memcpy(bytes_.data() + static_cast<std::size_t>(index) * dtype_bytes(dtype_), &bits,
                dtype_bytes(dtype_));
  }
  [[nodiscard]] double at(std::int64_t index) const {
    return reference::element({bytes_.data(), dtype_, 1, index + 1, index + 1}, 0, index);
  }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] void* data() { return bytes_.data(); }
  [[nodiscard]] const void* data() const { return bytes_.data(); }

 private:
  DType dtype_;
  std::vector<std::byte> bytes_;
};

// A matrix with `padding` columns of NaN after each row.
class TestMatrix {
 public:
  TestMatrix(std::int64_t rows, std::int64_t cols, std::int64_t padding = 0,
             DType dtype = DType::kF32)
      : rows_(rows), cols_(cols), stride_(cols + padding), elements_(dtype, rows * stride_) {}

  TestMatrix& randomize(std::mt19937& random, float scale = 1.0F) {
    std::normal_distribution<float> normal(0.0F, scale);
    for (std::int64_t row = 0; row < rows_; ++row) {
      for (std::int64_t col = 0; col < cols_; ++col) set(row, col, normal(random));
    }
    return *this;
  }
  void set(std::int64_t row, std::int64_t col, float value) {
    elements_.set(row * stride_ + col, value);
  }
  // An F32 matrix, rounded to another type.
  [[nodiscard]] TestMatrix as(DType dtype) const {
    TestMatrix result(rows_, cols_, stride_ - cols_, dtype);
    for (std::int64_t row = 0; row < rows_; ++row) {
      for (std::int64_t col = 0; col < cols_; ++col) result.set(row, col, at(row, col));
    }
    return result;
  }
  [[nodiscard]] Matrix view() {
    return {elements_.data(), elements_.dtype(), rows_, cols_, stride_};
  }
  [[nodiscard]] ConstMatrix view() const {
    return {elements_.data(), elements_.dtype(), rows_, cols_, stride_};
  }
  [[nodiscard]] ConstMatrix view(std::int64_t first_row, std::int64_t rows) const {
    const auto skipped = static_cast<std::size_t>(first_row * stride_);
    return {
        static_cast<const std::byte*>(elements_.data()) + skipped * dtype_bytes(elements_.dtype()),
        elements_.dtype(), rows, cols_, stride_};
  }
  [[nodiscard]] const float* floats() const { return static_cast<const float*>(elements_.data()); }
  [[nodiscard]] float at(std::int64_t row, std::int64_t col) const {
    return floats()[row * stride_ + col];
  }
  [[nodiscard]] std::vector<float> row(std::int64_t index) const {
    return {floats() + index * stride_, floats() + index * stride_ + cols_};
  }
  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t cols() const { return cols_; }
  [[nodiscard]] bool padding_is_poisoned() const {
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t c = cols_; c < stride_; ++c) {
        if (!std::isnan(at(r, c))) return false;
      }
    }
    return true;
  }

 private:
  std::int64_t rows_;
  std::int64_t cols_;
  std::int64_t stride_;
  Elements elements_;
};

// Bits of two rows; NaN equals NaN of the same bits.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// |actual - expected| <= factor * magnitude, element by element; padding untouched.
inline void expect_close(const TestMatrix& actual, const reference::Values& expected, double factor,
                         const std::string& what) {
  EXPECT_TRUE(actual.padding_is_poisoned()) << what;
  ASSERT_EQ(expected.value.size(), static_cast<std::size_t>(actual.rows() * actual.cols()));
  for (std::int64_t i = 0; i < actual.rows() * actual.cols(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double value = actual.at(i / actual.cols(), i % actual.cols());
    // 2^-120: exponentials stop there.
    const double allowed = factor * expected.magnitude[at] + 0x1p-120;
    ASSERT_LE(std::abs(value - expected.value[at]), allowed)
        << what << ": row " << i / actual.cols() << " column " << i % actual.cols() << " is "
        << value << ", expected " << expected.value[at];
  }
}

}  // namespace triphase
