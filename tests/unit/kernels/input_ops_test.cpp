// Hidden states in INT8, and INT8 KV made again from what they give.

#include "kernels/cpu/cpu_input_ops.h"
#include "tests/unit/kernels/kernel_test.h"

namespace triphase {
namespace {

class InputOpsTest : public KernelTest {
 protected:
  void SetUp() override {
    KernelTest::SetUp();
    if (!IsSkipped()) inputs_ = make_cpu_input_ops(pool_);
  }

  std::unique_ptr<InputOps> inputs_;
};

TEST_P(InputOpsTest, RowsComeBackWithinHalfAStepWhateverIsBesideThem) {
  for (const std::int64_t columns : {1, 7, 64, 130}) {
    const std::int64_t rows = 9;
    TestMatrix x(rows, columns, 3);
    x.randomize(random_, 5.0F);
    for (std::int64_t c = 0; c < columns; ++c) x.set(2, c, 0.0F);
    x.set(4, columns / 2, std::numeric_limits<float>::quiet_NaN());
    x.set(5, columns - 1, -std::numeric_limits<float>::infinity());
    std::vector<std::int8_t> codes(static_cast<std::size_t>(rows * columns + 1), 77);
    std::vector<float> scales(static_cast<std::size_t>(rows + 1), -7.0F);
    inputs_->quantize(std::as_const(x).view(), codes.data(), scales.data(), *stream_);
    EXPECT_EQ(codes.back(), 77);
    EXPECT_EQ(scales.back(), -7.0F);
    TestMatrix back(rows, columns, 2);
    inputs_->dequantize(codes.data(), scales.data(), back.view(), *stream_);
    EXPECT_TRUE(back.padding_is_poisoned());
    for (std::int64_t row = 0; row < rows; ++row) {
      const float scale = scales[static_cast<std::size_t>(row)];
      float largest = 0.0F;
      for (std::int64_t c = 0; c < columns; ++c) {
        largest = std::max(largest, std::abs(x.at(row, c)));
      }
      if (row != 4 && row != 5) {
        EXPECT_EQ(scale, largest / 127.0F);
      }
      for (std::int64_t c = 0; c < columns; ++c) {
        const float value = back.at(row, c);
        if (row == 4 || row == 5) {
          EXPECT_TRUE(std::isnan(value));
        } else {
          EXPECT_LE(std::abs(value - x.at(row, c)), 0.5F * scale * (1.0F + 0x1p-16F));
        }
      }
    }
    // A row alone is the same.
    std::vector<std::int8_t> alone(static_cast<std::size_t>(columns));
    float scale = 0.0F;
    inputs_->quantize(x.view(7, 1), alone.data(), &scale, *stream_);
    EXPECT_EQ(scale, scales[7]);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), codes.begin() + 7 * columns));
  }
}

TEST_P(InputOpsTest, TokensGetTheCodesThatTheirBlocksClosingGaveThem) {
  constexpr std::int64_t kHeads = 2;
  constexpr std::int64_t kPage = 32;
  for (const DType dtype : kStoredTypes) {
    for (const std::int64_t dim : {5, 16, 20}) {
      Elements pools[2] = {{dtype, 2 * kHeads * kPage * dim}, {dtype, 2 * kHeads * kPage * dim}};
      std::normal_distribution<float> normal;
      for (Elements& pool : pools) {
        for (std::int64_t i = 0; i < 2 * kHeads * kPage * dim; ++i) {
          const std::int64_t channel = i % dim;
          const std::int64_t token = i / dim % kPage;
          float value = 3.0F * normal(random_) + 2.0F;
          if (channel == 0) value = -7.25F;
          if (channel == 1) value = token % 2 == 0 ? 0.0F : -0.0F;
          if (channel == 2) value *= 0x1p-20F;
          if (channel == 3 && token == 9) value = std::numeric_limits<float>::infinity();
          if (channel == 4) value = 1.0F + static_cast<float>(token);  // its zero point is -8
          pool.set(i, value);
        }
      }
      const auto elements = static_cast<std::size_t>(kHeads * kPage * dim);
      std::vector<std::uint8_t> k(2 * elements, 77);
      std::vector<std::uint8_t> v(2 * elements, 77);
      std::vector<KvScale> scales(static_cast<std::size_t>(2 * 2 * kHeads * dim));
      const KvLayerView cache{k.data(), v.data(),      DType::kInt8,    kPage,           kHeads,
                              dim,      scales.data(), pools[0].data(), pools[1].data(), dtype};
      const std::vector<FullBlock> full_blocks = {{PageId(1), PageId(1), PageId(1)}};
      ops_->quantize_blocks({full_blocks}, cache, *stream_);
      // Every third token goes to page 0, elsewhere than it was.
      std::vector<KvRequantize> tokens;
      for (std::int32_t token = 0; token < kPage; token += 3) {
        tokens.push_back({PageId(1), token, (token + 11) % 32, PageId(1)});
      }
      inputs_->kv_requantize(tokens, cache, *stream_);
      for (const std::vector<std::uint8_t>& codes : {k, v}) {
        std::vector<bool> written(kPage, false);
        for (const KvRequantize& token : tokens) {
          written[static_cast<std::size_t>(token.slot)] = true;
          for (std::int64_t head = 0; head < kHeads; ++head) {
            for (std::int64_t c = 0; c < dim; ++c) {
              const auto to = static_cast<std::size_t>((head * kPage + token.slot) * dim + c);
              const auto from = elements + static_cast<std::size_t>(
                                               (head * kPage + token.partial_offset) * dim + c);
              ASSERT_EQ(codes[to], codes[from]) << "channel " << c << " of " << dtype_name(dtype);
            }
          }
        }
        for (std::size_t i = 0; i < elements; ++i) {
          const std::size_t token = i / static_cast<std::size_t>(dim) % kPage;
          if (!written[token]) {
            ASSERT_EQ(codes[i], 77);
          }
        }
      }
    }
  }
}

// Codes lie through the KV heads of the token's K, its scale at the head of its V.
TEST_P(InputOpsTest, RestoresTheTokensThatTheListHolds) {
  constexpr std::int64_t kHeads = 3;
  constexpr std::int64_t kPage = 16;
  constexpr std::int64_t kWidth = 25;
  for (const DType dtype : {DType::kInt8, DType::kF16, DType::kF32}) {
    const std::int64_t dim = 10;
    const std::int64_t line = dim * static_cast<std::int64_t>(dtype_bytes(dtype));
    std::vector<std::int8_t> k(static_cast<std::size_t>(2 * kHeads * kPage * line));
    std::vector<std::byte> v(k.size());
    for (std::int8_t& code : k) code = static_cast<std::int8_t>(random_() % 255 - 127);
    const std::vector<RecomputedToken> tokens = {{.slot = 3}, {.slot = 30}, {.slot = 16}};
    const auto line_of = [&](std::int64_t slot, std::int64_t head) {
      return static_cast<std::size_t>(((slot / kPage * kHeads + head) * kPage + slot % kPage) *
                                      line);
    };
    for (const RecomputedToken& token : tokens) {
      const float scale = 0.25F + static_cast<float>(token.slot);
      std::memcpy(v.data() + line_of(token.slot, 0), &scale, sizeof scale);
    }
    const KvLayerView cache{k.data(), v.data(), dtype, kPage, kHeads, dim};
    const auto count = static_cast<std::int32_t>(tokens.size());
    for (const std::int64_t first : {0, 1}) {
      TestMatrix x(3, kWidth, 2);
      inputs_->restore({.tokens = tokens.data(), .count = &count, .most = 8}, first, cache,
                       x.view(), *stream_);
      EXPECT_TRUE(x.padding_is_poisoned());
      for (std::int64_t row = 0; row < 3; ++row) {
        for (std::int64_t c = 0; c < kWidth; ++c) {
          if (row + first >= count) {
            ASSERT_TRUE(std::isnan(x.at(row, c))) << "beyond the list";
            continue;
          }
          const std::int32_t slot = tokens[static_cast<std::size_t>(row + first)].slot;
          const std::int8_t code = k[line_of(slot, c / line) + static_cast<std::size_t>(c % line)];
          ASSERT_EQ(x.at(row, c), static_cast<float>(code) * (0.25F + static_cast<float>(slot)))
              << dtype_name(dtype) << " row " << row << " column " << c;
        }
      }
    }
  }
}

TEST_P(InputOpsTest, RefusesOtherCaches) {
  EXPECT_THROW(inputs_->kv_requantize({}, KvLayerView{}, *stream_), Error);
}

TRIPHASE_KERNEL_TARGETS(InputOpsTest);

}  // namespace
}  // namespace triphase
