// 4-bit groups: what they read as against float64, and Ops::dequantize_groups against the codec.

#include "kernels/group_quant.h"

#include <array>

#include "tests/unit/kernels/kernel_test.h"

namespace triphase {
namespace {

struct Packed {
  Packed(const std::vector<float>& values, std::int64_t group)
      : ranges((values.size() + static_cast<std::size_t>(group) - 1) /
               static_cast<std::size_t>(group)),
        codes((values.size() + 1) / 2, 0xFF) {
    pack_groups(values, group, ranges.data(), codes.data());
  }
  [[nodiscard]] std::vector<float> read(std::size_t count, std::int64_t group) const {
    std::vector<std::uint16_t> bits(count);
    dequantize_groups(ranges.data(), codes.data(), group, bits);
    std::vector<float> values;
    for (const std::uint16_t one : bits) values.push_back(f16_to_f32(one));
    return values;
  }

  std::vector<GroupRange> ranges;
  std::vector<std::uint8_t> codes;
};

std::vector<float> read_back(const std::vector<float>& values, std::int64_t group = kGroupValues) {
  return Packed(values, group).read(values.size(), group);
}

// The nearest of the sixteen values that float64 arithmetic puts at equal distances.
double nearest_level(double value, double least, double largest) {
  if (largest == least) return least;
  const double step = (largest - least) / 15.0;
  return least + step * std::round((value - least) / step);
}

TEST(GroupQuant, StaysWithinItsBoundOfWhatItWas) {
  std::mt19937 random(5);
  double worst = 0.0;  // share of the bound
  for (int round = 0; round < 4000; ++round) {
    const auto count = static_cast<std::size_t>(1 + random() % 200);
    const auto group = static_cast<std::int64_t>(2 * (1 + random() % 40));
    const float scale = std::ldexp(1.0F, static_cast<int>(random() % 40) - 26);
    const float middle = random() % 3 == 0 ? scale * 30.0F : 0.0F;
    std::normal_distribution<float> normal(middle, scale);
    std::vector<float> values(count);
    for (float& value : values) value = std::clamp(normal(random), -65504.0F, 65504.0F);
    const std::vector<float> read = read_back(values, group);
    for (std::size_t first = 0; first < count; first += static_cast<std::size_t>(group)) {
      const std::size_t end = std::min(count, first + static_cast<std::size_t>(group));
      const auto [least, largest] =
          std::minmax_element(values.begin() + static_cast<std::ptrdiff_t>(first),
                              values.begin() + static_cast<std::ptrdiff_t>(end));
      const double bound = group_error_bound(*least, *largest);
      for (std::size_t i = first; i < end; ++i) {
        const double error = std::abs(static_cast<double>(read[i]) - values[i]);
        ASSERT_LE(error, bound) << values[i] << " in [" << *least << ", " << *largest << "]";
        worst = std::max(worst, error / bound);
        // And near the level that exact arithmetic picks, which is half a step away at most.
        ASSERT_LE(std::abs(read[i] - nearest_level(values[i], *least, *largest)),
                  bound + (*largest - *least) / 30.0);
      }
    }
  }
  // A bound that nothing comes near would show nothing.
  EXPECT_GT(worst, 0.8);
}

TEST(GroupQuant, EqualValuesAreRestoredExactly) {
  for (const float value : {0.0F, 1.0F, -0.333251953125F, 65504.0F, -65504.0F, 0x1p-24F}) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{63}, std::size_t{130}}) {
      for (const float read : read_back(std::vector<float>(count, value))) EXPECT_EQ(read, value);
    }
  }
  // What is no F16 value becomes the one nearest to it.
  EXPECT_EQ(read_back({0.1F, 0.1F}).back(), f16_to_f32(f32_to_f16(0.1F)));
}

TEST(GroupQuant, BothEndsOfF16AreRead) {
  const std::vector<float> read = read_back({-65504.0F, 65504.0F, 0.0F});
  EXPECT_EQ(read[0], -65504.0F);
  EXPECT_TRUE(std::isfinite(read[1]));
  EXPECT_NEAR(read[1], 65504.0F, group_error_bound(-65504.0, 65504.0));
  // A range so small that its step is nothing in F16.
  const std::vector<float> tiny = read_back({1.0F, 1.0F + 0x1p-23F});
  EXPECT_EQ(tiny[0], 1.0F);
  EXPECT_EQ(tiny[1], 1.0F);
}

TEST(GroupQuant, AGroupWithWhatIsNoF16NumberIsNanAndItsNeighboursAreNot) {
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY, 65520.0F, -1e30F}) {
    std::vector<float> values(12, 2.0F);
    values[5] = bad;
    values[6] = 1.0F;
    const std::vector<float> read = read_back(values, 4);
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(std::isnan(read[i]), i / 4 == 1) << bad << " at " << i;
    }
  }
}

TEST(GroupQuant, CodesLieTwoInAByteLowHalfFirst) {
  const Packed packed({0.0F, 15.0F, 3.0F, 7.0F, 9.0F}, kGroupValues);
  ASSERT_EQ(packed.ranges.size(), 1U);
  EXPECT_EQ(f16_to_f32(packed.ranges[0].minimum), 0.0F);
  EXPECT_EQ(f16_to_f32(packed.ranges[0].step), 1.0F);
  EXPECT_EQ(packed.codes, (std::vector<std::uint8_t>{0xF0, 0x73, 0x09}));
  EXPECT_THROW(Packed({1.0F, 2.0F, 3.0F}, 1), Error) << "a group would begin within a byte";
}

TEST(GroupMatrix, CountsItsBytes) {
  const GroupMatrix matrix{nullptr, 3, 130};
  EXPECT_EQ(matrix.groups(), 3);
  EXPECT_EQ(matrix.range_row_bytes(), 12U);
  EXPECT_EQ(matrix.code_row_bytes(), 65U);
  EXPECT_EQ(matrix.codes_offset(), 36U);
  // 4.5 bits of a weight where rows are whole groups.
  EXPECT_EQ((GroupMatrix{nullptr, 1, 4096}.row_bytes()), 4096U * 9 / 16);
}

class DequantizeGroups : public KernelTest {};

TEST_P(DequantizeGroups, ReadsWhatTheCodecReads) {
  for (const std::int64_t rows : {1, 3, 40}) {
    for (const std::int64_t cols : {1, 2, 31, 32, 33, 63, 64, 65, 96, 127, 128, 200, 1000}) {
      const GroupMatrix shape{nullptr, rows, cols};
      std::vector<std::byte> memory(shape.row_bytes() * static_cast<std::size_t>(rows));
      const GroupMatrix matrix{memory.data(), rows, cols};
      auto* ranges = reinterpret_cast<GroupRange*>(memory.data());
      auto* codes = reinterpret_cast<std::uint8_t*>(memory.data() + shape.codes_offset());
      std::vector<std::vector<std::uint16_t>> expected;
      for (std::int64_t row = 0; row < rows; ++row) {
        const float scale = std::ldexp(1.0F, static_cast<int>(random_() % 30) - 20);
        std::normal_distribution<float> normal(0.0F, scale);
        std::vector<float> values(static_cast<std::size_t>(cols));
        for (float& value : values) value = normal(random_);
        if (row == 2) values[0] = std::nanf("");
        GroupRange* row_ranges = ranges + row * shape.groups();
        std::uint8_t* row_codes = codes + row * static_cast<std::int64_t>(shape.code_row_bytes());
        pack_groups(values, kGroupValues, row_ranges, row_codes);
        dequantize_groups(row_ranges, row_codes, kGroupValues,
                          expected.emplace_back(static_cast<std::size_t>(cols)));
      }
      const std::int64_t stride = cols + 3;
      std::vector<std::uint16_t> read(static_cast<std::size_t>(rows * stride), 0xABCD);
      ops_->dequantize_groups(matrix, {read.data(), DType::kF16, rows, cols, stride}, *stream_);
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t col = 0; col < stride; ++col) {
          const std::uint16_t want =
              col < cols ? expected[static_cast<std::size_t>(row)][static_cast<std::size_t>(col)]
                         : std::uint16_t{0xABCD};
          ASSERT_EQ(read[static_cast<std::size_t>(row * stride + col)], want)
              << rows << " x " << cols << ", row " << row << " column " << col;
        }
      }
    }
  }
}

TEST_P(DequantizeGroups, RefusesOtherShapesAndTypes) {
  std::array<std::byte, 64> memory{};
  std::array<std::uint16_t, 64> read{};
  const GroupMatrix w{memory.data(), 2, 8};
  EXPECT_THROW(ops_->dequantize_groups(w, {read.data(), DType::kBF16, 2, 8, 8}, *stream_), Error);
  EXPECT_THROW(ops_->dequantize_groups(w, {read.data(), DType::kF16, 2, 7, 8}, *stream_), Error);
  EXPECT_THROW(ops_->dequantize_groups({}, {read.data(), DType::kF16, 2, 8, 8}, *stream_), Error);
}

TRIPHASE_KERNEL_TARGETS(DequantizeGroups);

}  // namespace
}  // namespace triphase
