#include "models/weights/mxfp4.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/dtype.h"

namespace triphase {
namespace {

constexpr float kValues[] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                             -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

std::vector<std::byte> bytes(const std::vector<int>& values) {
  std::vector<std::byte> result;
  for (const int value : values) result.push_back(static_cast<std::byte>(value));
  return result;
}

TEST(Mxfp4, EveryCodeUnderEveryScale) {
  for (int scale = 0; scale < 256; ++scale) {
    std::vector<int> blocks;
    for (int code = 0; code < 16; ++code) blocks.push_back(code + 16 * (15 - code));
    std::vector<std::uint16_t> out(32);
    dequantize_mxfp4(bytes(blocks), bytes({scale}), out);
    for (std::size_t code = 0; code < 16; ++code) {
      const float low = bf16_to_f32(out[2 * code]);
      const float high = bf16_to_f32(out[2 * code + 1]);
      if (scale == 255) {
        EXPECT_TRUE(std::isnan(low) && std::isnan(high));
        continue;
      }
      EXPECT_EQ(low, std::ldexp(kValues[code], scale - 127)) << code << " scale " << scale;
      EXPECT_EQ(high, std::ldexp(kValues[15 - code], scale - 127)) << code << " scale " << scale;
      EXPECT_EQ(std::signbit(low), code >= 8);
    }
  }
}

TEST(Mxfp4, EachGroupHasItsScale) {
  std::vector<std::uint16_t> out(96);
  dequantize_mxfp4(bytes(std::vector<int>(48, 0x72)), bytes({127, 126, 130}), out);
  const float powers[] = {1.0F, 0.5F, 8.0F};
  for (std::size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(bf16_to_f32(out[i]), (i % 2 == 0 ? 1.0F : 6.0F) * powers[i / 32]) << i;
  }
}

}  // namespace
}  // namespace triphase
