#pragma once

// What the kernel tests share: random matrices whose padding is poisoned, an Ops for every SIMD
// target, comparisons that say where and by how much.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/simd_target.h"
#include "kernels/reference/reference_ops.h"
#include "memory/host_device.h"
#include "tests/unit/kernels/tolerances.h"

namespace triphase {

inline constexpr DType kStoredTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

// Elements of one type in exactly as much memory as they need, so that sanitizers see overruns.
class Elements {
 public:
  Elements(DType dtype, std::int64_t count)
      : dtype_(dtype), bytes_(static_cast<std::size_t>(count) * dtype_bytes(dtype)) {}

  void set(std::int64_t index, float value) {
    const std::uint32_t bits = reference::stored_bits(value, dtype_);
    std::memcpy(bytes_.data() + static_cast<std::size_t>(index) * dtype_bytes(dtype_), &bits,
                dtype_bytes(dtype_));
  }
  void poison() {
    if (dtype_ == DType::kInt8) return std::fill(bytes_.begin(), bytes_.end(), std::byte{0xFF});
    const auto count = static_cast<std::int64_t>(bytes_.size() / dtype_bytes(dtype_));
    for (std::int64_t i = 0; i < count; ++i) set(i, std::numeric_limits<float>::quiet_NaN());
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
      : rows_(rows), cols_(cols), stride_(cols + padding), elements_(dtype, rows * stride_) {
    elements_.poison();
  }

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
  [[nodiscard]] Matrix view() {
    return {elements_.data(), elements_.dtype(), rows_, cols_, stride_};
  }
  [[nodiscard]] ConstMatrix view() const {
    return {elements_.data(), elements_.dtype(), rows_, cols_, stride_};
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

// Runs once per SIMD target; targets that the processor lacks are skipped.
class KernelTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    try {
      cpu::use_simd_target(GetParam());
    } catch (const Error&) {
      GTEST_SKIP() << "this processor has no " << GetParam();
    }
    setenv("TRIPHASE_SIMD", GetParam(), 1);
    stream_ = device_.make_stream();
    ops_ = make_cpu_ops(pool_);
  }
  void TearDown() override { unsetenv("TRIPHASE_SIMD"); }

  HostDevice device_;
  ThreadPool pool_{2};
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Ops> ops_;
  std::mt19937 random_{12345};
};

#define TRIPHASE_KERNEL_TARGETS(Suite)                                                          \
  INSTANTIATE_TEST_SUITE_P(Targets, Suite, testing::Values("avx512", "avx2", "sse4", "scalar"), \
                           [](const auto& test) { return std::string(test.param); })

}  // namespace triphase
