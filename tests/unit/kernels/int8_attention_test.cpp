#include "tests/unit/kernels/kv_caches.h"

namespace triphase {
namespace {

class Int8AttentionTest : public KvCacheTest {};

TEST_P(Int8AttentionTest, MatchesReferenceForEveryBlockGroupAndDim) {
  std::vector<CacheShape> shapes;
  for (const std::int64_t page : {16, 32, 64, 128}) {
    shapes.push_back({.heads = 4, .kv_heads = 2, .dim = 20, .page_tokens = page});
  }
  for (const std::int64_t group : {1, 2, 3, 4, 5, 6, 7, 8, 33, 130}) {
    shapes.push_back({.heads = 2 * group, .kv_heads = 2, .dim = 16});
  }
  for (const std::int64_t dim : {1, 33, 64, 80, 128}) {
    shapes.push_back({.heads = 2, .kv_heads = 1, .dim = dim, .page_tokens = 64});
  }
  for (const DType partial : kStoredTypes) shapes.push_back({.dtype = partial});
  for (const CacheShape& shape : shapes) {
    const std::int64_t tokens = shape.page_tokens == 128 ? 150 : 100;
    SequenceCache cache(shape, tokens, *ops_, *stream_, random_);
    const TestMatrix q = TestMatrix(tokens, shape.heads * shape.dim, 3).randomize(random_);
    for (const std::int64_t window : {0, 40}) {
      const std::vector<AttentionSegment> segments = cache.prefill(1000, window);
      const TestMatrix out = run(cache.view(), q.view(), segments);
      expect_matches(out, q.view(), cache.view(), segments);
    }
  }
}

TEST_P(Int8AttentionTest, MatchesReferenceAcrossSplits) {
  for (const std::int64_t page : {32, 128}) {
    const CacheShape shape{.heads = 2, .kv_heads = 1, .page_tokens = page};
    SequenceCache cache(shape, 1100, *ops_, *stream_, random_);
    const TestMatrix q = TestMatrix(6, 40).randomize(random_);
    std::vector<AttentionSegment> segments;
    for (const std::int64_t context : {511, 512, 513, 1024, 1025, 1100}) {
      segments.push_back(cache.segment(static_cast<std::int64_t>(segments.size()), 1, context));
    }
    const TestMatrix out = run(cache.view(), q.view(), segments);
    expect_matches(out, q.view(), cache.view(), segments);
  }
}

TEST_P(Int8AttentionTest, ResultsDoNotDependOnChunksNeighboursThreadsOrPages) {
  for (const CacheShape& shape :
       {CacheShape{.heads = 4, .kv_heads = 2, .dim = 20, .page_tokens = 32},
        CacheShape{.heads = 3, .kv_heads = 3, .dim = 64, .page_tokens = 64, .dtype = DType::kF32},
        CacheShape{.heads = 33, .kv_heads = 1, .dim = 20, .page_tokens = 32},
        CacheShape{.heads = 16, .kv_heads = 2, .dim = 33, .page_tokens = 128}}) {
    for (const std::int64_t window : {0, 90}) {
      const std::int64_t tokens = 600;
      SequenceCache cache(shape, tokens, *ops_, *stream_, random_);
      const TestMatrix q = TestMatrix(tokens, shape.heads * shape.dim, 1).randomize(random_);
      const TestMatrix all = run(cache.view(), q.view(), cache.prefill(tokens, window));
      cache.move_pages(random_);
      for (const std::int64_t chunk : {1, 7, 50}) {
        std::vector<AttentionSegment> segments = cache.prefill(chunk, window);
        std::shuffle(segments.begin(), segments.end(), random_);
        const TestMatrix out = run(cache.view(), q.view(), segments);
        for (std::int64_t row = 0; row < tokens; ++row) {
          ASSERT_TRUE(same_bits(out.row(row), all.row(row)))
              << describe(shape) << " window " << window << " position " << row << " chunks of "
              << chunk;
        }
      }
      for (const int threads : {1, 3}) {
        ThreadPool pool(threads);
        const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
        for (const std::int64_t position : {0, 31, 32, 63, 64, 511, 512, 599}) {
          const AttentionSegment segment = cache.segment(0, 1, position + 1, window);
          const TestMatrix out =
              run_on(*ops, threads, cache.view(), q.view(position, 1), {&segment, 1});
          ASSERT_TRUE(same_bits(out.row(0), all.row(position)))
              << describe(shape) << " window " << window << " position " << position << ", "
              << threads << " threads";
        }
      }
    }
  }
}

// What a query may not see: its own block's codes, later tokens, scales of other blocks.
TEST_P(Int8AttentionTest, NanReachesThoseWhoSeeItAndNobodyElse) {
  const CacheShape shape{.heads = 2, .kv_heads = 1, .dim = 20, .page_tokens = 32};
  SequenceCache cache(shape, 128, *ops_, *stream_, random_);
  // Block 1's lambda of one V channel.
  const std::int64_t page = cache.segment(0, 1, 128).scale_pages[1].value;
  cache.scales()[static_cast<std::size_t>((page * 2 + 1) * 20 + 3)] = {kNoKvScale};
  const TestMatrix q = TestMatrix(128, 40).randomize(random_);
  for (const std::int64_t window : {0, 40}) {
    const TestMatrix out = run(cache.view(), q.view(), cache.prefill(128, window));
    for (std::int64_t row = 0; row < 128; ++row) {
      const bool sees = row >= 64 && (window == 0 || row + 1 - window < 64);
      EXPECT_EQ(std::isfinite(out.at(row, 3)), !sees) << row;
      EXPECT_TRUE(std::isfinite(out.at(row, 4))) << row;
    }
  }
}

TEST_P(Int8AttentionTest, RefusesQueriesOfTwoBlocksAndMissingScales) {
  const CacheShape shape{.heads = 2, .kv_heads = 1};
  SequenceCache cache(shape, 64, *ops_, *stream_, random_);
  const TestMatrix q = TestMatrix(40, 40).randomize(random_);
  AttentionSegment segment = cache.segment(0, 33, 64);
  EXPECT_THROW((void)run(cache.view(), q.view(), {&segment, 1}), Error);
  segment = cache.segment(0, 1, 64);
  segment.scale_pages = {};
  EXPECT_THROW((void)run(cache.view(), q.view(), {&segment, 1}), Error);
  segment = cache.segment(0, 1, 64);
  segment.partial_page = {};
  EXPECT_THROW((void)run(cache.view(), q.view(), {&segment, 1}), Error);
  KvLayerView view = cache.view();
  view.page_tokens = 20;
  segment = cache.segment(0, 1, 20);
  EXPECT_THROW((void)run(view, q.view(), {&segment, 1}), Error);
}

TRIPHASE_KERNEL_TARGETS(Int8AttentionTest);

}  // namespace
}  // namespace triphase
