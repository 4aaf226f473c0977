#include "tests/unit/kernels/kernel_test.h"

namespace triphase {
namespace {

struct Block {
  std::vector<std::uint8_t> k;
  std::vector<std::uint8_t> v;
  std::vector<KvScale> scales;
};

constexpr KvScale kUntouched{77};

class KvCloseTest : public KernelTest {
 protected:
  static constexpr std::int64_t kHeads = 2;
  static constexpr std::int64_t kPage = 32;

  // Closes partial page 1 of two into page 2 of three, scale page 1 of two.
  Block close(Elements& k, Elements& v, std::int64_t dim) {
    Block block;
    const auto elements = static_cast<std::size_t>(kHeads * kPage * dim);
    block.k.assign(3 * elements, 77);
    block.v = block.k;
    block.scales.assign(static_cast<std::size_t>(2 * 2 * kHeads * dim), kUntouched);
    const KvLayerView cache{
        block.k.data(),      block.v.data(), DType::kInt8, kPage,    kHeads, dim,
        block.scales.data(), k.data(),       v.data(),     k.dtype()};
    const std::vector<FullBlock> full_blocks = {{PageId(1), PageId(2), PageId(1)}};
    ops_->quantize_blocks({full_blocks}, cache, *stream_);
    return block;
  }
};

std::vector<float> channel_of(const Elements& pool, std::int64_t head, std::int64_t dim,
                              std::int64_t c) {
  std::vector<float> values;
  for (std::int64_t t = 0; t < 32; ++t) {
    values.push_back(static_cast<float>(pool.at(((2 + head) * 32 + t) * dim + c)));
  }
  return values;
}

TEST_P(KvCloseTest, MatchesReferenceBitForBitWithinHalfAStep) {
  for (const DType dtype : kStoredTypes) {
    for (const std::int64_t dim : {1, 7, 16, 20, 128}) {
      std::normal_distribution<float> normal;
      Elements pools[2] = {{dtype, 2 * kHeads * kPage * dim}, {dtype, 2 * kHeads * kPage * dim}};
      for (Elements& pool : pools) {
        for (std::int64_t head = 0; head < kHeads; ++head) {
          for (std::int64_t c = 0; c < dim; ++c) {
            const float bias = 20.0F * normal(random_);
            const float width = std::exp2(4.0F * normal(random_));
            const bool constant = c % 5 == 2;
            const bool zero = c % 10 == 7;
            for (std::int64_t t = 0; t < kPage; ++t) {
              pool.set(((kHeads + head) * kPage + t) * dim + c,
                       zero       ? 0.0F
                       : constant ? bias
                                  : bias + width * normal(random_));
            }
          }
        }
      }
      const Block block = close(pools[0], pools[1], dim);
      for (std::int64_t value = 0; value < 2; ++value) {
        for (std::int64_t head = 0; head < kHeads; ++head) {
          for (std::int64_t c = 0; c < dim; ++c) {
            const std::vector<float> values = channel_of(pools[value], head, dim, c);
            const reference::QuantizedChannel expected = reference::quantize_channel(values);
            const auto at = static_cast<std::size_t>(((2 + value) * kHeads + head) * dim + c);
            const float lambda = kv_lambda(block.scales[at].bits);
            const float zero = kv_zero(block.scales[at].bits);
            ASSERT_TRUE(same_bits({lambda, zero}, {expected.lambda, expected.zero}));
            // No coarser than its two causes ask for: BF16, and a zero point of 16 bits.
            const auto [low, high] = std::minmax_element(values.begin(), values.end());
            ASSERT_LE(lambda,
                      std::max({(*high - *low) / 255.0F * (1.0F + 0x1p-7F),
                                0x1p-13F * std::max(std::abs(*low), std::abs(*high)), 0x1p-126F}));
            for (std::size_t t = 0; t < values.size(); ++t) {
              const std::uint8_t code =
                  (value == 0
                       ? block.k
                       : block.v)[static_cast<std::size_t>((2 * kHeads + head) * kPage * dim) +
                                  t * static_cast<std::size_t>(dim) + static_cast<std::size_t>(c)];
              ASSERT_EQ(code, expected.codes[t]);
              const double restored =
                  static_cast<double>(lambda) * (static_cast<double>(code) - zero);
              if (c % 5 == 2 && dtype != DType::kF32) {
                ASSERT_EQ(restored, values[t]);
              } else {
                // Half a step, and the F32 roundings of lambda, quotient and zero point.
                ASSERT_LE(std::abs(restored - values[t]),
                          0.5 * std::abs(lambda) +
                              0x1p-21 * (std::abs(values[t]) + 255.0 * std::abs(lambda)));
              }
            }
          }
        }
      }
      // Nothing else is touched.
      const auto elements = static_cast<std::size_t>(kHeads * kPage * dim);
      EXPECT_EQ(block.k[2 * elements - 1], 77);
      EXPECT_EQ(block.v[0], 77);
      EXPECT_EQ(block.scales[static_cast<std::size_t>(2 * kHeads * dim) - 1], kUntouched);
    }
  }
}

TEST_P(KvCloseTest, ZerosOfBothSignsTinyRangesAndNonFiniteValues) {
  const std::int64_t dim = 7;
  Elements k(DType::kF32, 2 * kHeads * kPage * dim);
  Elements v(DType::kF32, 2 * kHeads * kPage * dim);
  for (std::int64_t i = 0; i < 2 * kHeads * kPage * dim; ++i) {
    k.set(i, 0.0F);
    v.set(i, 0.0F);
  }
  for (std::int64_t t = 0; t < kPage; ++t) {
    const std::int64_t at = (kHeads * kPage + t) * dim;
    k.set(at, t % 2 == 0 ? 0.0F : -0.0F);
    k.set(at + 1, t == 3 ? 0x1p-149F : 0.0F);
    k.set(at + 2, t == 4 ? std::numeric_limits<float>::quiet_NaN() : 1.0F);
    k.set(at + 3, t == 5 ? -std::numeric_limits<float>::infinity() : 1.0F);
    k.set(at + 4, t == 6 ? 3e38F : -3e38F);
    k.set(at + 5, t == 7 ? -1000.0F : -1000.25F);  // far from zero for its width
    k.set(at + 6, t == 8 ? 0x1.FFFFFEp9F : 0x1.FFFFFCp9F);
  }
  const Block block = close(k, v, dim);
  const KvScale* scales = block.scales.data() + 2 * kHeads * dim;
  for (int c = 0; c < 2; ++c) EXPECT_EQ(scales[c], kv_scale(0x1p-126F, 0.0F)) << c;
  for (int c = 2; c < 5; ++c) EXPECT_EQ(scales[c].bits, kNoKvScale) << c;
  EXPECT_EQ(scales[5], kv_scale(0x1p-4F, 16004.0F));
  EXPECT_EQ(scales[6], kv_scale(0x1p-4F, -16384.0F));
}

TEST_P(KvCloseTest, RefusesOtherCachesAndPages) {
  Elements k(DType::kF32, 2 * kHeads * kPage);
  const std::vector<FullBlock> bad = {{PageId(1), PageId(), PageId(1)}};
  std::vector<KvScale> scales(64);
  KvLayerView cache{k.data(), k.data(),      DType::kInt8, kPage,    kHeads,
                    1,        scales.data(), k.data(),     k.data(), DType::kF32};
  EXPECT_THROW(ops_->quantize_blocks({bad}, cache, *stream_), Error);
  cache.dtype = DType::kF16;
  EXPECT_THROW(ops_->quantize_blocks({}, cache, *stream_), Error);
}

TRIPHASE_KERNEL_TARGETS(KvCloseTest);

}  // namespace
}  // namespace triphase
