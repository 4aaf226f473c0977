// Rows of a 4-bit KV cache: what they read as, their bytes, and attention over them.

#include "kernels/group_quant.h"
#include "tests/unit/kernels/kv_caches.h"

namespace triphase {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Rows of 4-bit codes, one token to a page, one head.
class GroupRowsTest : public KvCacheTest {
 protected:
  // Stores K rows of `dim` values (V gets them negated); to be read with read().
  void store(std::int64_t dim, const std::vector<std::vector<float>>& rows) {
    dim_ = dim;
    const auto count = static_cast<std::int64_t>(rows.size());
    TestMatrix k(count, dim, 1);
    TestMatrix v(count, dim, 1);
    pages_.clear();
    for (std::int64_t row = 0; row < count; ++row) {
      pages_.emplace_back(count - 1 - row);
      for (std::int64_t c = 0; c < dim; ++c) {
        const float x = rows[static_cast<std::size_t>(row)][static_cast<std::size_t>(c)];
        k.set(row, c, x);
        v.set(row, c, -x);
      }
    }
    const auto bytes = static_cast<std::size_t>(count * dtype_row_bytes(DType::kQ4, dim));
    k_.assign(bytes, std::byte{0xFF});
    v_.assign(bytes, std::byte{0xFF});
    const std::vector<std::int32_t> offsets(rows.size(), 0);
    ops_->kv_append(k.view(), v.view(), {pages_, offsets}, view(), *stream_);
  }
  [[nodiscard]] KvLayerView view() { return {k_.data(), v_.data(), DType::kQ4, 1, 1, dim_}; }
  [[nodiscard]] std::vector<double> read(std::size_t row, bool value = false) {
    AttentionSegment segment{0, 1, 1, std::span(pages_).subspan(row, 1)};
    return reference::cached_row(view(), segment, 0, 0, value);
  }
  std::int64_t dim_ = 0;
  std::vector<PageId> pages_;
  std::vector<std::byte> k_;
  std::vector<std::byte> v_;
};

constexpr std::int64_t kDims[] = {1, 2, 7, 20, 33, 63, 64, 65, 80, 128, 200, 256};

TEST_P(GroupRowsTest, ARowIsFourAndAHalfBitsAnElement) {
  EXPECT_EQ(dtype_row_bytes(DType::kQ4, 64), 36);
  EXPECT_EQ(dtype_row_bytes(DType::kQ4, 128), 72);
  EXPECT_EQ(dtype_row_bytes(DType::kQ4, 80), 8 + 40);
  EXPECT_EQ(dtype_row_bytes(DType::kQ4, 20), 4 + 10);
  EXPECT_EQ(dtype_row_bytes(DType::kQ4, 6), 4 + 4) << "whole 16-bit words";
}

TEST_P(GroupRowsTest, ErrorsAreWithinTheGroupsBound) {
  struct Kind {
    float offset, scale;
  };
  for (const std::int64_t dim : kDims) {
    for (const Kind kind : {Kind{0, 1}, Kind{100, 1}, Kind{-7, 0.01F}, Kind{0, 1e-6F},
                            Kind{3, 1e-7F}, Kind{0, 1e4F}, Kind{-40000, 100}}) {
      std::normal_distribution<float> normal(kind.offset, kind.scale);
      std::vector<std::vector<float>> rows(8);
      for (std::vector<float>& row : rows) {
        for (std::int64_t c = 0; c < dim; ++c) row.push_back(normal(random_));
      }
      store(dim, rows);
      for (std::size_t row = 0; row < rows.size(); ++row) {
        const std::vector<double> k = read(row);
        const std::vector<double> v = read(row, /*value=*/true);
        ASSERT_EQ(k.size(), rows[row].size());
        for (std::int64_t first = 0; first < dim; first += kGroupValues) {
          const auto begin = rows[row].begin() + first;
          const auto end = rows[row].begin() + std::min(dim, first + kGroupValues);
          const double least = *std::min_element(begin, end);
          const double most = *std::max_element(begin, end);
          for (auto x = begin; x != end; ++x) {
            const auto c = static_cast<std::size_t>(x - rows[row].begin());
            ASSERT_NEAR(k[c], *x, group_error_bound(least, most)) << dim << " channel " << c;
            ASSERT_NEAR(v[c], -*x, group_error_bound(-most, -least)) << dim << " channel " << c;
          }
        }
      }
    }
  }
}

// Nothing of a group that F16 holds finely is further off than half a step.
TEST_P(GroupRowsTest, ErrorsAreAboutHalfAStep) {
  std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
  std::vector<float> row(128);
  for (float& x : row) x = uniform(random_);
  row[3] = row[70] = -1.0F;
  row[9] = row[99] = 1.0F;
  store(128, {row});
  double worst = 0.0;
  for (std::size_t c = 0; c < row.size(); ++c) {
    worst = std::max(worst, std::abs(read(0)[c] - row[c]));
  }
  EXPECT_LE(worst, 1.0 / 15 + 0x1p-12);
  EXPECT_GE(worst, 0.7 / 15);
}

TEST_P(GroupRowsTest, GroupsOfEqualF16ValuesAreExact) {
  std::vector<float> constants = {0.0F, -0.0F, 1.0F, -1.0F, 65504.0F, -65504.0F, 0x1p-24F};
  for (const float value : {0.1F, -3.3F, 1234.5F, 0.007F}) {
    constants.push_back(f16_to_f32(f32_to_f16(value)));
    constants.push_back(bf16_to_f32(f32_to_bf16(value)));
  }
  for (const std::int64_t dim : {20, 64, 80, 128}) {
    std::vector<std::vector<float>> rows;
    for (const float value : constants) rows.emplace_back(static_cast<std::size_t>(dim), value);
    store(dim, rows);
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const std::vector<double> k = read(row);
      const std::vector<double> v = read(row, /*value=*/true);
      for (std::size_t c = 0; c < k.size(); ++c) {
        ASSERT_EQ(k[c], constants[row]);
        ASSERT_EQ(v[c], -constants[row]);
      }
    }
  }
  store(64, {std::vector<float>(64, 0.1F)});
  EXPECT_EQ(read(0)[5], f16_to_f32(f32_to_f16(0.1F))) << "as an F16 cache holds it";
}

TEST_P(GroupRowsTest, WhatIsNotFiniteReadsAsNanThroughoutItsGroup) {
  for (const float bad : {kNaN, kInfinity, -kInfinity, -1e6F, 1e7F}) {
    for (const std::size_t at : {64U, 70U, 127U, 135U}) {
      std::vector<float> row(136, 0.25F);
      for (std::size_t c = 0; c < row.size(); c += 3) row[c] = 1.0F;
      row[at] = bad;
      store(136, {row});
      const std::vector<double> k = read(0);
      for (std::size_t c = 0; c < row.size(); ++c) {
        EXPECT_EQ(std::isnan(k[c]), c / 64 == at / 64) << bad << " at " << at << ", channel " << c;
      }
    }
  }
}

// The same bytes in every SIMD target: the codec's, ranges in front of codes.
TEST_P(GroupRowsTest, BytesAreTheCodecs) {
  std::normal_distribution<float> normal(0.3F);
  for (const std::int64_t dim : kDims) {
    std::vector<float> row;
    for (std::int64_t c = 0; c < dim; ++c) row.push_back(normal(random_));
    if (dim > 64) std::fill(row.begin() + 64, row.end(), 60001.0F);  // a step of 0
    store(dim, {row});
    std::vector<GroupRange> ranges(static_cast<std::size_t>(group_count(dim)));
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(dim + 1) / 2);
    pack_groups(row, kGroupValues, ranges.data(), codes.data());
    std::vector<std::byte> expected(static_cast<std::size_t>(dtype_row_bytes(DType::kQ4, dim)));
    std::memcpy(expected.data(), ranges.data(), ranges.size() * sizeof(GroupRange));
    std::memcpy(expected.data() + ranges.size() * sizeof(GroupRange), codes.data(), codes.size());
    EXPECT_EQ(expected, k_) << "dim " << dim;
  }
}

TEST_P(GroupRowsTest, AttentionMatchesReference) {
  std::vector<CacheShape> shapes;
  for (const std::int64_t dim : {1, 7, 20, 33, 64, 80, 128, 192}) {
    shapes.push_back({.heads = 2, .kv_heads = 1, .dim = dim});
  }
  for (const std::int64_t group : {1, 3, 8, 12}) {
    shapes.push_back({.heads = 2 * group, .kv_heads = 2, .dim = 64, .page_tokens = 10});
  }
  for (CacheShape& shape : shapes) {
    shape.dtype = DType::kQ4;
    shape.int8 = false;
    SequenceCache cache(shape, 150, *ops_, *stream_, random_);
    const TestMatrix q = TestMatrix(150, shape.heads * shape.dim, 3).randomize(random_);
    for (const std::int64_t window : {0, 40}) {
      const std::vector<AttentionSegment> segments = cache.prefill(1000, window);
      const TestMatrix out = run(*ops_, 2, shape, cache.view(), q.view(), segments);
      expect_matches(shape, out, q.view(), cache.view(), segments, 150);
    }
  }
}

TEST_P(GroupRowsTest, ResultsDoNotDependOnChunksNeighboursThreadsOrPages) {
  for (const std::int64_t dim : {20, 80, 128}) {
    const CacheShape shape{.heads = 6,
                           .kv_heads = 2,
                           .dim = dim,
                           .page_tokens = 24,
                           .dtype = DType::kQ4,
                           .int8 = false};
    const std::int64_t tokens = 600;
    SequenceCache cache(shape, tokens, *ops_, *stream_, random_);
    const TestMatrix k = TestMatrix(tokens, 2 * dim, 2).randomize(random_);
    cache.append_again(k, tokens, *ops_, *stream_);
    const TestMatrix q = TestMatrix(tokens, 6 * dim, 1).randomize(random_);
    const TestMatrix all = run(*ops_, 2, shape, cache.view(), q.view(), cache.prefill(tokens, 90));
    cache.move_pages(random_);
    for (const std::int64_t chunk : {1, 7, 50}) {
      cache.append_again(k, chunk, *ops_, *stream_);
      std::vector<AttentionSegment> segments = cache.prefill(chunk, 90);
      std::shuffle(segments.begin(), segments.end(), random_);
      const TestMatrix out = run(*ops_, 2, shape, cache.view(), q.view(), segments);
      for (std::int64_t row = 0; row < tokens; ++row) {
        ASSERT_TRUE(same_bits(out.row(row), all.row(row))) << "position " << row;
      }
    }
    ThreadPool pool(1);
    const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
    const AttentionSegment last = cache.segment(0, 1, tokens, 90);
    ConstMatrix part = q.view();
    part.data = q.floats() + (tokens - 1) * part.row_stride;
    part.rows = 1;
    const TestMatrix out = run(*ops, 1, shape, cache.view(), part, {&last, 1});
    EXPECT_TRUE(same_bits(out.row(0), all.row(tokens - 1)));
  }
}

TEST_P(GroupRowsTest, RecordsCarryWholeRowsAndAreNotAttended) {
  const CacheShape shape{
      .heads = 2, .kv_heads = 2, .dim = 20, .page_tokens = 16, .dtype = DType::kQ4, .int8 = false};
  SequenceCache cache(shape, 16, *ops_, *stream_, random_);
  const std::vector<PageId> pages(cache.segment(0, 1, 16).pages.begin(),
                                  cache.segment(0, 1, 16).pages.end());
  std::vector<std::int32_t> slots;
  for (std::int32_t token = 0; token < 16; ++token) {
    slots.push_back(static_cast<std::int32_t>(pages[0].value * 16 + token));
  }
  const std::int64_t row = dtype_row_bytes(DType::kQ4, 20);
  std::vector<std::byte> records(static_cast<std::size_t>(16 * 2 * 2 * row));
  ops_->kv_pack(cache.view(), slots, records.data(), *stream_);
  const TestMatrix q = TestMatrix(1, 40).randomize(random_);
  const AttentionSegment segment = cache.segment(0, 1, 16);
  const TestMatrix before = run(*ops_, 2, shape, cache.view(), q.view(), {&segment, 1});
  std::vector<std::int32_t> reversed(slots.rbegin(), slots.rend());
  ops_->kv_unpack(records.data(), reversed, cache.view(), *stream_);
  const TestMatrix mixed = run(*ops_, 2, shape, cache.view(), q.view(), {&segment, 1});
  ops_->kv_unpack(records.data(), slots, cache.view(), *stream_);
  const TestMatrix after = run(*ops_, 2, shape, cache.view(), q.view(), {&segment, 1});
  EXPECT_FALSE(same_bits(before.row(0), mixed.row(0)));
  EXPECT_TRUE(same_bits(before.row(0), after.row(0)));
  KvLayerView host = cache.view();
  host.records = true;
  EXPECT_THROW((void)run(*ops_, 2, shape, host, q.view(), {&segment, 1}), Error);
}

TRIPHASE_KERNEL_TARGETS(GroupRowsTest);

}  // namespace
}  // namespace triphase
