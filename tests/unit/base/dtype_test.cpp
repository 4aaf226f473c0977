#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>

namespace triphase {
namespace {

TEST(Half, EveryPatternSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = f16_to_f32(static_cast<std::uint16_t>(bits));
    const std::uint16_t back = f32_to_f16(value);
    if (std::isnan(value)) {
      EXPECT_TRUE((back & 0x7C00u) == 0x7C00u && (back & 0x3FFu) != 0) << bits;
    } else {
      EXPECT_EQ(back, bits);
    }
  }
}

TEST(Half, KnownValues) {
  EXPECT_EQ(f16_to_f32(0x3C00), 1.0F);
  EXPECT_EQ(f16_to_f32(0xC000), -2.0F);
  EXPECT_EQ(f16_to_f32(0x7BFF), 65504.0F);
  EXPECT_EQ(f16_to_f32(0x0001), 0x1p-24F);
  EXPECT_EQ(f16_to_f32(0x8000), 0.0F);
  EXPECT_TRUE(std::signbit(f16_to_f32(0x8000)));
  EXPECT_EQ(f32_to_f16(65519.996F), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65520.0F), 0x7C00) << "rounds to infinity";
  EXPECT_EQ(f32_to_f16(0x1p-25F), 0x0000) << "tie to even";
  EXPECT_EQ(f32_to_f16(0x1.8p-24F), 0x0002) << "tie to even";
  EXPECT_EQ(f32_to_f16(1.0F + 0x1p-11F), 0x3C00) << "tie to even";
  EXPECT_EQ(f32_to_f16(1.0F + 0x1.8p-10F), 0x3C02) << "tie to even";
}

TEST(Half, RoundsToTheNearestNeighbour) {
  // Between consecutive halves the midpoint decides; a little to either side must not.
  for (std::uint16_t bits = 0; bits < 0x7BFF; bits = static_cast<std::uint16_t>(bits + 7)) {
    const float low = f16_to_f32(bits);
    const float high = f16_to_f32(static_cast<std::uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;
    EXPECT_EQ(f32_to_f16(std::nextafter(middle, low)), bits);
    EXPECT_EQ(f32_to_f16(std::nextafter(middle, high)), bits + 1);
  }
}

TEST(BrainFloat, RoundTripAndRounding) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = bf16_to_f32(static_cast<std::uint16_t>(bits));
    if (!std::isnan(value)) {
      EXPECT_EQ(f32_to_bf16(value), bits);
    }
  }
  EXPECT_EQ(f32_to_bf16(1.0F + 0x1p-8F), 0x3F80) << "tie to even";
  EXPECT_EQ(f32_to_bf16(1.0F + 0x1.8p-7F), 0x3F82) << "tie to even";
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(NAN))));
}

TEST(DTypeNames, RoundTrip) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kInt8}) {
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
  }
  EXPECT_FALSE(dtype_from_name("f12").has_value());
  EXPECT_EQ(dtype_bytes(DType::kBF16), 2u);
}

}  // namespace
}  // namespace triphase
