#include "tests/unit/kernels/kv_caches.h"

namespace triphase {
namespace {

struct Shape {
  std::int64_t heads = 4;
  std::int64_t kv_heads = 2;
  std::int64_t dim = 20;
  std::int64_t page_tokens = 16;
  DType dtype = DType::kF32;
};

// A cache of sequences whose pages are shuffled; slots without a token hold NaN.
class PagedCache {
 public:
  PagedCache(const Shape& shape, const std::vector<std::int64_t>& contexts, std::mt19937& random)
      : shape_(shape),
        k_(shape.dtype, total_pages(shape, contexts) * page_elements(shape)),
        v_(shape.dtype, total_pages(shape, contexts) * page_elements(shape)),
        pages_there_(total_pages(shape, contexts)) {
    std::vector<PageId> order;
    for (std::int64_t page = 0; page < total_pages(shape, contexts); ++page)
      order.emplace_back(page);
    std::shuffle(order.begin(), order.end(), random);
    std::normal_distribution<float> normal;
    for (const std::int64_t context : contexts) {
      std::vector<PageId>& pages = pages_.emplace_back();
      for (std::int64_t token = 0; token < context; ++token) {
        if (token % shape.page_tokens == 0) {
          pages.push_back(order.back());
          order.pop_back();
        }
        for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
          for (std::int64_t c = 0; c < shape.dim; ++c) {
            const std::int64_t at = index(pages.back(), head, token, c);
            k_.set(at, normal(random));
            v_.set(at, normal(random));
          }
        }
      }
    }
  }

  [[nodiscard]] KvLayerView view() {
    return {k_.data(), v_.data(), shape_.dtype, shape_.page_tokens, shape_.kv_heads, shape_.dim};
  }
  // The same tokens as the host has them: K and V of a token side by side.
  [[nodiscard]] KvLayerView records() {
    const auto size = static_cast<std::int64_t>(dtype_bytes(shape_.dtype));
    const std::int64_t row = shape_.dim * size;
    const std::int64_t rows = pages_there_ * shape_.kv_heads * shape_.page_tokens;
    records_.assign(static_cast<std::size_t>(2 * rows * row), std::byte{0});
    for (std::int64_t from = 0; from < rows; ++from) {
      const std::int64_t token = from % shape_.page_tokens;
      const std::int64_t head = from / shape_.page_tokens % shape_.kv_heads;
      const std::int64_t page = from / shape_.page_tokens / shape_.kv_heads;
      std::byte* to = records_.data() +
                      ((page * shape_.page_tokens + token) * shape_.kv_heads + head) * 2 * row;
      std::memcpy(to, static_cast<const std::byte*>(k_.data()) + from * row,
                  static_cast<std::size_t>(row));
      std::memcpy(to + row, static_cast<const std::byte*>(v_.data()) + from * row,
                  static_cast<std::size_t>(row));
    }
    KvLayerView view = this->view();
    view.k = records_.data();
    view.v = records_.data() + row;
    view.records = true;
    return view;
  }
  [[nodiscard]] std::span<const PageId> pages(std::size_t sequence) const {
    return pages_[sequence];
  }
  void set_k(std::size_t sequence, std::int64_t token, std::int64_t head, std::int64_t c,
             float value) {
    k_.set(index(pages_[sequence][static_cast<std::size_t>(token / shape_.page_tokens)], head,
                 token, c),
           value);
  }
  void set_v(std::size_t sequence, std::int64_t token, std::int64_t head, std::int64_t c,
             float value) {
    v_.set(index(pages_[sequence][static_cast<std::size_t>(token / shape_.page_tokens)], head,
                 token, c),
           value);
  }

 private:
  static std::int64_t page_elements(const Shape& shape) {
    return shape.kv_heads * shape.page_tokens * shape.dim;
  }
  static std::int64_t total_pages(const Shape& shape, const std::vector<std::int64_t>& contexts) {
    std::int64_t pages = 2;  // some belong to nobody
    for (const std::int64_t context : contexts) {
      pages += (context + shape.page_tokens - 1) / shape.page_tokens;
    }
    return pages;
  }
  [[nodiscard]] std::int64_t index(PageId page, std::int64_t head, std::int64_t token,
                                   std::int64_t c) const {
    return ((page.value * shape_.kv_heads + head) * shape_.page_tokens +
            token % shape_.page_tokens) *
               shape_.dim +
           c;
  }

  Shape shape_;
  Elements k_;
  Elements v_;
  std::int64_t pages_there_;
  std::vector<std::byte> records_;
  std::vector<std::vector<PageId>> pages_;
};

class AttentionTest : public KvCacheTest {
 protected:
  using KvCacheTest::expect_matches;
  void expect_matches(const Shape& shape, const std::vector<std::int64_t>& contexts,
                      const std::vector<std::int64_t>& queries, std::int64_t window,
                      float cap = 0.0F, const float* sinks = nullptr) {
    PagedCache cache(shape, contexts, random_);
    std::int64_t rows = 0;
    std::vector<AttentionSegment> segments;
    for (std::size_t i = 0; i < contexts.size(); ++i) {
      segments.push_back({rows, queries[i], contexts[i], cache.pages(i), window});
      rows += queries[i];
    }
    const TestMatrix q = TestMatrix(rows, shape.heads * shape.dim, 3).randomize(random_);
    const ScoreScale scale(1.0F / std::sqrt(static_cast<float>(shape.dim)), cap, sinks);
    expect_matches(run(cache.view(), q.view(), segments, scale), q.view(), cache.view(), segments,
                   scale);
  }
};

TEST_P(AttentionTest, CapsScores) {
  for (const float cap : {0.2F, 1.0F, 50.0F}) {
    expect_matches({.heads = 6, .kv_heads = 2, .dim = 20, .page_tokens = 16}, {1, 65, 130},
                   {1, 3, 40}, 0, cap);
    expect_matches({.heads = 4, .kv_heads = 4, .dim = 16}, {130}, {40}, 24, cap);
  }
}

// From one that takes all of the softmax to one that takes nothing.
TEST_P(AttentionTest, SinksJoinTheSoftmax) {
  const std::vector<float> sinks = {200.0F, 3.0F, 0.0F, -2.0F, -200.0F, 1.5F};
  for (const DType dtype : kStoredTypes) {
    const Shape shape{.heads = 6, .kv_heads = 2, .dim = 20, .page_tokens = 16, .dtype = dtype};
    expect_matches(shape, {1, 65, 130, 700}, {1, 3, 40, 2}, 0, 0.0F, sinks.data());
    expect_matches(shape, {130}, {40}, 24, 0.0F, sinks.data());
  }
  // Many splits, in parallel and one after the other.
  expect_matches({.heads = 2, .kv_heads = 1, .dim = 20}, {1100}, {1}, 0, 0.0F, sinks.data());
  expect_matches({.heads = 2, .kv_heads = 1, .dim = 20}, {1100}, {70}, 0, 0.0F, sinks.data() + 1);
}

TEST_P(AttentionTest, MatchesReferenceForEveryTypePageAndGroup) {
  const std::vector<std::int64_t> contexts = {1, 5, 63, 64, 65, 130};
  const std::vector<std::int64_t> queries = {1, 5, 1, 3, 1, 40};
  for (const DType dtype : kStoredTypes) {
    for (const std::int64_t page : {1, 3, 16, 32, 64}) {
      expect_matches({.heads = 6, .kv_heads = 2, .dim = 20, .page_tokens = page, .dtype = dtype},
                     contexts, queries, 0);
    }
    for (const std::int64_t group : {1, 2, 3, 4, 5, 8, 33, 130}) {
      const std::int64_t kv_heads = group > 8 ? 1 : 3;
      expect_matches({.heads = kv_heads * group, .kv_heads = kv_heads, .dim = 16, .dtype = dtype},
                     contexts, queries, 0);
    }
    for (const std::int64_t dim : {1, 8, 64, 80, 100, 128}) {
      expect_matches({.heads = 2, .kv_heads = 1, .dim = dim, .dtype = dtype}, contexts, queries, 0);
    }
  }
}

TEST_P(AttentionTest, MatchesReferenceAcrossSplits) {
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    expect_matches({.heads = 2, .kv_heads = 1, .dim = 20, .page_tokens = 32, .dtype = dtype},
                   {511, 512, 513, 1100}, {1, 1, 1, 1}, 0);
    expect_matches({.heads = 2, .kv_heads = 2, .dim = 24, .page_tokens = 3, .dtype = dtype},
                   {530, 1030}, {30, 9}, 0);
  }
}

TEST_P(AttentionTest, MatchesReferenceWithWindows) {
  for (const std::int64_t window : {1, 7, 64, 100, 600}) {
    expect_matches({.heads = 4, .kv_heads = 2, .dim = 20, .dtype = DType::kF16},
                   {3, 64, 200, 700, 1100}, {3, 40, 1, 5, 1}, window);
  }
}

TEST_P(AttentionTest, ResultsDoNotDependOnChunksNeighboursOrThreads) {
  for (const Shape& shape :
       {Shape{.heads = 4, .kv_heads = 2, .dim = 20, .page_tokens = 16, .dtype = DType::kF16},
        Shape{.heads = 3, .kv_heads = 3, .dim = 64, .page_tokens = 3, .dtype = DType::kF32},
        Shape{.heads = 33, .kv_heads = 1, .dim = 20, .page_tokens = 16, .dtype = DType::kF16},
        Shape{.heads = 16, .kv_heads = 2, .dim = 33, .page_tokens = 32, .dtype = DType::kBF16}}) {
    for (const std::int64_t window : {0, 90}) {
      const std::int64_t tokens = 600;
      PagedCache cache(shape, {tokens, 77}, random_);
      const TestMatrix q = TestMatrix(tokens + 1, shape.heads * shape.dim, 1).randomize(random_);
      // Prefill in one call, with another sequence's decode step beside it.
      const std::vector<AttentionSegment> whole = {{1, tokens, tokens, cache.pages(0), window},
                                                   {0, 1, 77, cache.pages(1), window}};
      const TestMatrix all = run(cache.view(), q.view(), whole, 0.3F);
      const auto expect_same = [&](Ops& ops, int threads, std::int64_t first, std::int64_t count) {
        const ConstMatrix part = q.view(1 + first, count);
        const std::vector<AttentionSegment> segment = {
            {0, count, first + count, cache.pages(0), window}};
        const TestMatrix out = run_on(ops, threads, cache.view(), part, segment, 0.3F);
        for (std::int64_t row = 0; row < count; ++row) {
          ASSERT_TRUE(same_bits(out.row(row), all.row(1 + first + row)))
              << "heads " << shape.heads << " " << dtype_name(shape.dtype) << " window " << window
              << " position " << first + row << " in a chunk of " << count << ", " << threads
              << " threads";
        }
      };
      for (const std::int64_t chunk : {7, 64, 250}) {
        for (std::int64_t first = 0; first < tokens; first += chunk) {
          expect_same(*ops_, 2, first, std::min(chunk, tokens - first));
        }
      }
      for (const int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
        for (const std::int64_t position : {0, 3, 63, 64, 500, 511, 512, 513, 599}) {
          expect_same(*ops, threads, position, 1);
        }
      }
    }
  }
}

// A query alone attends under many heads page by page; of two queries each head is done on its own.
TEST_P(AttentionTest, ManyHeadsAtOnceGiveTheBitsOfOneByOne) {
  const std::vector<std::int64_t> contexts = {2, 64, 700, 2700};
  for (const DType dtype : kStoredTypes) {
    for (const std::int64_t page : {20, 32}) {
      const Shape shape{
          .heads = 13, .kv_heads = 13, .dim = 100, .page_tokens = page, .dtype = dtype};
      PagedCache cache(shape, contexts, random_);
      const TestMatrix q = TestMatrix(8, shape.heads * shape.dim, 3).randomize(random_);
      for (const std::int64_t window : {0, 90}) {
        std::vector<AttentionSegment> pairs;
        std::vector<AttentionSegment> alone;
        for (std::size_t i = 0; i < contexts.size(); ++i) {
          const auto row = static_cast<std::int64_t>(2 * i);
          pairs.push_back({row, 2, contexts[i], cache.pages(i), window});
          alone.push_back({row + 1, 1, contexts[i], cache.pages(i), window});
        }
        const TestMatrix expected = run(cache.view(), q.view(), pairs, 0.3F);
        for (const int threads : {1, 2, 3}) {
          ThreadPool pool(threads);
          const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
          const TestMatrix out = run_on(*ops, threads, cache.view(), q.view(), alone, 0.3F);
          for (std::int64_t row = 1; row < 8; row += 2) {
            ASSERT_TRUE(same_bits(out.row(row), expected.row(row)))
                << "heads " << shape.heads << " " << dtype_name(shape.dtype) << " window " << window
                << " row " << row << ", " << threads << " threads";
          }
        }
      }
    }
    expect_matches({.heads = 13, .kv_heads = 13, .dim = 100, .page_tokens = 32, .dtype = dtype},
                   {64, 700}, {1, 1}, 0);
  }
}

// Wherever K and V of a token lie, the same arithmetic.
TEST_P(AttentionTest, RecordsGiveTheBitsOfPages) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const std::int64_t window : {std::int64_t{0}, std::int64_t{70}}) {
      const Shape shape{.heads = 6, .kv_heads = 3, .dim = 24, .page_tokens = 16, .dtype = dtype};
      const std::vector<std::int64_t> contexts = {1, 37, 700};
      PagedCache cache(shape, contexts, random_);
      std::vector<AttentionSegment> segments;
      for (std::size_t i = 0; i < contexts.size(); ++i) {
        segments.push_back({static_cast<std::int64_t>(i), 1, contexts[i], cache.pages(i), window});
      }
      const TestMatrix q = TestMatrix(3, shape.heads * shape.dim, 3).randomize(random_);
      const TestMatrix pages = run(cache.view(), q.view(), segments, 0.3F);
      const TestMatrix records = run(cache.records(), q.view(), segments, 0.3F);
      for (std::int64_t row = 0; row < 3; ++row) {
        EXPECT_TRUE(same_bits(records.row(row), pages.row(row)))
            << dtype_name(dtype) << " window " << window << " row " << row;
      }
    }
  }
}

TEST_P(AttentionTest, QueriesWithoutTokensGiveZeros) {
  const Shape shape{.heads = 2, .kv_heads = 1, .dim = 20};
  PagedCache cache(shape, {3}, random_);
  const TestMatrix q = TestMatrix(5, 40).randomize(random_);
  // Five queries end a context of three: the first two stand before its beginning.
  const std::vector<AttentionSegment> segments = {{0, 5, 3, cache.pages(0), 0}};
  const TestMatrix out = run(cache.view(), q.view(), segments, 1.0F);
  EXPECT_THAT(out.row(0), testing::Each(0.0F));
  EXPECT_THAT(out.row(1), testing::Each(0.0F));
  EXPECT_THAT(out.row(2), testing::Not(testing::Each(0.0F)));
  const std::vector<AttentionSegment> none = {{0, 0, 3, cache.pages(0), 0}};
  const TestMatrix untouched = run(cache.view(), q.view(), none, 1.0F);
  EXPECT_TRUE(std::isnan(untouched.at(0, 0)));
}

TEST_P(AttentionTest, NanReachesThoseWhoSeeItAndNobodyElse) {
  const Shape shape{.heads = 4, .kv_heads = 2, .dim = 20, .dtype = DType::kF16};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, infinity}) {
    for (const bool in_k : {true, false}) {
      PagedCache cache(shape, {100}, random_);
      if (in_k) {
        cache.set_k(0, 70, 1, 3, nan);
      } else {
        cache.set_v(0, 70, 1, 3, bad);
      }
      const TestMatrix q = TestMatrix(100, 80).randomize(random_);
      const std::vector<AttentionSegment> segments = {{0, 100, 100, cache.pages(0), 0}};
      const TestMatrix out = run(cache.view(), q.view(), segments, 1.0F);
      for (std::int64_t row = 0; row < 100; ++row) {
        for (std::int64_t head = 0; head < 4; ++head) {
          EXPECT_EQ(std::isfinite(out.at(row, head * 20 + 3)), head < 2 || row < 70)
              << "row " << row << " head " << head;
        }
      }
    }
  }
}

TEST_P(AttentionTest, LargeScoresNeitherOverflowNorVanish) {
  const Shape shape{.heads = 1, .kv_heads = 1, .dim = 4};
  PagedCache cache(shape, {70}, random_);
  for (std::int64_t token = 0; token < 70; ++token) {
    for (std::int64_t c = 0; c < 4; ++c) {
      cache.set_k(0, token, 0, c, token == 65 ? 1000.0F : 10.0F);
      cache.set_v(0, token, 0, c, static_cast<float>(token));
    }
  }
  TestMatrix q(1, 4);
  for (std::int64_t c = 0; c < 4; ++c) q.set(0, c, 1000.0F);
  const std::vector<AttentionSegment> segments = {{0, 1, 70, cache.pages(0), 0}};
  EXPECT_THAT(run(cache.view(), q.view(), segments, 1.0F).row(0), testing::Each(65.0F));
  for (std::int64_t c = 0; c < 4; ++c) q.set(0, c, -1000.0F);
  // All but token 65 share the weight: the mean of 0..69 without 65.
  EXPECT_THAT(run(cache.view(), q.view(), segments, 1.0F).row(0),
              testing::Each(testing::FloatNear(2350.0F / 69.0F, 1e-3F)));
}

TEST_P(AttentionTest, RefusesBadArguments) {
  const Shape shape{.heads = 2, .kv_heads = 1, .dim = 20};
  PagedCache cache(shape, {40}, random_);
  TestMatrix q(2, 40);
  const auto throws = [&](const AttentionSegment& segment, std::size_t bytes) {
    void* workspace = device_.allocate(std::max<std::size_t>(bytes, 64));
    EXPECT_THROW(ops_->attention(q.view(), 2, cache.view(), {&segment, 1}, 1.0F, q.view(),
                                 {static_cast<std::byte*>(workspace), bytes}, *stream_),
                 Error);
    device_.release(workspace, std::max<std::size_t>(bytes, 64));
  };
  throws({0, 1, 40, cache.pages(0), 0}, 64);
  throws({0, 1, 60, cache.pages(0), 0}, 1 << 20);
  throws({1, 2, 40, cache.pages(0), 0}, 1 << 20);
}

TRIPHASE_KERNEL_TARGETS(AttentionTest);

}  // namespace
}  // namespace triphase
