#include <bit>

#include "tests/unit/kernels/kernel_test.h"

namespace triphase {
namespace {

class ConversionTest : public KernelTest {};

// embed() with scale 1 converts every stored pattern to F32, in full vectors and in parts.
TEST_P(ConversionTest, ConvertsAllPatternsAsTheBaseLayer) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const std::int64_t cols : {65536, 7}) {
      const std::int64_t rows = (65536 + cols - 1) / cols;
      std::vector<std::uint16_t> patterns(static_cast<std::size_t>(rows * cols));
      std::vector<TokenId> ids;
      for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
      for (std::int64_t row = 0; row < rows; ++row) ids.push_back(static_cast<TokenId>(row));
      TestMatrix y(rows, cols);
      ops_->embed(ids, {patterns.data(), dtype, rows, cols, cols}, 1.0F, y.view(), *stream_);
      for (std::size_t i = 0; i < patterns.size(); ++i) {
        const float expected =
            dtype == DType::kF16 ? f16_to_f32(patterns[i]) : bf16_to_f32(patterns[i]);
        const float actual = y.floats()[i];
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(actual)) << patterns[i];
        } else {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(actual), std::bit_cast<std::uint32_t>(expected))
              << dtype_name(dtype) << " pattern " << patterns[i];
        }
      }
    }
  }
}

// Every 16-bit value, the midpoints between neighbours and the floats beside both, NaNs, and
// random patterns, rounded by kv_append.
TEST_P(ConversionTest, NarrowsAsTheBaseLayer) {
  std::vector<float> values;
  for (std::uint32_t pattern = 0; pattern < 65536; ++pattern) {
    for (const std::uint32_t bits :
         {std::bit_cast<std::uint32_t>(f16_to_f32(static_cast<std::uint16_t>(pattern))),
          pattern << 16}) {
      for (const std::uint32_t offset :
           {0U, 1U, 0x0FFFU, 0x1000U, 0x1001U, 0x7FFFU, 0x8000U, 0x8001U}) {
        values.push_back(std::bit_cast<float>(bits + offset));
      }
    }
  }
  for (int i = 0; i < 100000; ++i) {
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random_())));
    // Around the subnormals of F16, where rounding moves.
    values.push_back(std::ldexp(static_cast<float>(random_() % 4096) + 0.5F, -36));
  }
  constexpr std::int64_t kDim = 23;
  const auto tokens = static_cast<std::int64_t>(values.size()) / kDim;
  for (const DType dtype : kStoredTypes) {
    Elements k(dtype, tokens * kDim), v(dtype, tokens * kDim);
    const KvLayerView cache{k.data(), v.data(), dtype, tokens, 1, kDim};
    const std::vector<PageId> pages(static_cast<std::size_t>(tokens), PageId(0));
    std::vector<std::int32_t> offsets;
    for (std::int64_t i = 0; i < tokens; ++i) offsets.push_back(static_cast<std::int32_t>(i));
    const ConstMatrix in{values.data(), DType::kF32, tokens, kDim, kDim};
    ops_->kv_append(in, in, {pages, offsets}, cache, *stream_);
    for (std::int64_t i = 0; i < tokens * kDim; ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits,
                  static_cast<const std::byte*>(k.data()) +
                      static_cast<std::size_t>(i) * dtype_bytes(dtype),
                  dtype_bytes(dtype));
      ASSERT_EQ(bits, reference::stored_bits(values[static_cast<std::size_t>(i)], dtype))
          << dtype_name(dtype) << " of "
          << std::bit_cast<std::uint32_t>(values[static_cast<std::size_t>(i)]);
    }
    EXPECT_EQ(std::memcmp(k.data(), v.data(),
                          static_cast<std::size_t>(tokens * kDim) * dtype_bytes(dtype)),
              0);
  }
}

// Rows go where their slot says and nowhere else.
TEST_P(ConversionTest, AppendsIntoTheSlotsOnly) {
  constexpr std::int64_t kHeads = 3, kDim = 20, kPage = 5, kPages = 4;
  for (const DType dtype : kStoredTypes) {
    Elements k(dtype, kPages * kHeads * kPage * kDim), v(dtype, kPages * kHeads * kPage * kDim);
    TestMatrix k_new = TestMatrix(3, kHeads * kDim, 4).randomize(random_);
    TestMatrix v_new = TestMatrix(3, kHeads * kDim, 1).randomize(random_);
    const std::vector<PageId> pages = {PageId(2), PageId(0), PageId(2)};
    const std::vector<std::int32_t> offsets = {4, 1, 0};
    ops_->kv_append(k_new.view(), v_new.view(), {pages, offsets},
                    {k.data(), v.data(), dtype, kPage, kHeads, kDim}, *stream_);
    std::int64_t written = 0;
    for (std::int64_t i = 0; i < kPages * kHeads * kPage * kDim; ++i) {
      const std::int64_t c = i % kDim, token = i / kDim % kPage, head = i / kDim / kPage % kHeads,
                         page = i / kDim / kPage / kHeads;
      std::int64_t row = -1;
      for (std::int64_t r = 0; r < 3; ++r) {
        if (pages[static_cast<std::size_t>(r)].value == page &&
            offsets[static_cast<std::size_t>(r)] == token) {
          row = r;
        }
      }
      if (row < 0) {
        ASSERT_TRUE(std::isnan(k.at(i)));
        ASSERT_TRUE(std::isnan(v.at(i)));
        continue;
      }
      ++written;
      const double unit = dtype == DType::kF32 ? 0.0 : dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
      const double expected = k_new.at(row, head * kDim + c);
      ASSERT_NEAR(k.at(i), expected, std::abs(expected) * unit + 0x1p-25 * (unit != 0));
      const double expected_v = v_new.at(row, head * kDim + c);
      ASSERT_NEAR(v.at(i), expected_v, std::abs(expected_v) * unit + 0x1p-25 * (unit != 0));
    }
    EXPECT_EQ(written, 3 * kHeads * kDim);
    const std::vector<std::int32_t> outside = {4, 1, 5};
    EXPECT_THROW(ops_->kv_append(k_new.view(), v_new.view(), {pages, outside},
                                 {k.data(), v.data(), dtype, kPage, kHeads, kDim}, *stream_),
                 Error);
  }
}

TRIPHASE_KERNEL_TARGETS(ConversionTest);

}  // namespace
}  // namespace triphase
