#include "models/weights/tensor_scan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace triphase {
namespace {

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

TEST(TensorScan, FindsNanAndInfinityOfEveryType) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> f32(10'000, 1.0F);
  NonFinite clean;
  scan_non_finite(DType::kF32, bytes_of(f32), 0, clean);
  EXPECT_EQ(clean.count, 0U);
  f32[9'000] = nan;
  f32[4'097] = -inf;
  NonFinite bad;
  scan_non_finite(DType::kF32, bytes_of(f32), 1'000'000, bad);
  EXPECT_EQ(bad.count, 2U);
  EXPECT_EQ(bad.first, 1'004'097U);
  scan_non_finite(DType::kF32, bytes_of(f32), 2'000'000, bad);  // the first one stays
  EXPECT_EQ(bad.count, 4U);
  EXPECT_EQ(bad.first, 1'004'097U);

  NonFinite f16;
  scan_non_finite(DType::kF16, bytes_of<std::uint16_t>({0x7BFF, 0x7C00, 0xFC01, 0x8000}), 0, f16);
  EXPECT_EQ(f16.count, 2U);
  EXPECT_EQ(f16.first, 1U);
  NonFinite bf16;
  scan_non_finite(DType::kBF16, bytes_of<std::uint16_t>({0x7F7F, 0xFF7F, 0x7F80}), 5, bf16);
  EXPECT_EQ(bf16.count, 1U);
  EXPECT_EQ(bf16.first, 7U);
}

// Denormals, -0, the largest values, NaN.
TEST(TensorScan, ConvertsExactly) {
  std::vector<float> out(6);
  convert_to_f32(DType::kF16,
                 bytes_of<std::uint16_t>({0x0001, 0x8000, 0x7BFF, 0x3C00, 0xFC00, 0x03FF}), out);
  EXPECT_EQ(out[0], 0x1p-24F);
  EXPECT_TRUE(out[1] == 0.0F && std::signbit(out[1]));
  EXPECT_EQ(out[2], 65504.0F);
  EXPECT_EQ(out[3], 1.0F);
  EXPECT_EQ(out[4], -std::numeric_limits<float>::infinity());
  EXPECT_EQ(out[5], 1023.0F * 0x1p-24F);

  out.resize(4);
  convert_to_f32(DType::kBF16, bytes_of<std::uint16_t>({0x0001, 0x8000, 0x7F7F, 0x7FC0}), out);
  EXPECT_EQ(out[0], 0x1p-133F);
  EXPECT_TRUE(std::signbit(out[1]));
  EXPECT_EQ(out[2], 0x1.FEp127F);
  EXPECT_TRUE(std::isnan(out[3]));
}

}  // namespace
}  // namespace triphase
