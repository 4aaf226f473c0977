#include <sys/mman.h>

#include "tests/unit/kernels/kv_caches.h"

namespace triphase {
namespace {

class SelectionTest : public KvCacheTest {
 protected:
  // So many lists of about one token in `of`, the last token always.
  OwnedLists choose(const SequenceCache& cache, std::int64_t context, std::int64_t lists,
                    unsigned of) {
    OwnedLists selection;
    for (std::int64_t list = 0; list < lists; ++list) {
      cache.add_list(selection, context, [&](std::int64_t token) {
        return token + 1 == context || random_() % of == 0;
      });
    }
    return selection;
  }
};

TEST_P(SelectionTest, MatchesReferenceWithScores) {
  std::vector<CacheShape> shapes;
  for (const DType dtype : kStoredTypes) {
    shapes.push_back({.dtype = dtype, .int8 = false});
    shapes.push_back({.page_tokens = 64, .dtype = dtype, .int8 = true});
  }
  for (const std::int64_t group : {1, 3, 5, 7, 8}) {
    shapes.push_back({.heads = 2 * group, .dim = 33, .int8 = group % 2 == 1});
  }
  shapes.push_back({.heads = 12, .kv_heads = 1, .dim = 128, .page_tokens = 128});
  const std::vector<float> sinks(16, 1.5F);
  for (const CacheShape& shape : shapes) {
    SequenceCache cache(shape, 1900, *ops_, *stream_, random_);
    const bool sink = shape.heads % 3 == 0;
    const ScoreScale scale(0.25F, 0.0F, sink ? sinks.data() : nullptr);
    for (const std::int64_t lists : {std::int64_t{1}, shape.kv_heads}) {
      const std::vector<std::int64_t> contexts = {1, 33, 64, 200, 1900, 1900};
      const auto rows = static_cast<std::int64_t>(contexts.size());
      const TestMatrix q = TestMatrix(rows, shape.heads * shape.dim, 3).randomize(random_);
      std::vector<OwnedLists> selections;
      // Of INT8 blocks the last list has so few tokens that they are dequantized one by one.
      for (std::size_t i = 0; i < contexts.size(); ++i) {
        selections.push_back(choose(cache, contexts[i], lists, i + 1 < contexts.size() ? 3 : 20));
      }
      std::vector<AttentionSegment> segments;
      for (std::int64_t row = 0; row < rows; ++row) {
        const auto i = static_cast<std::size_t>(row);
        segments.push_back(cache.segment(row, 1, contexts[i]));
        segments.back().pages = {};
        segments.back().window = 5;
        segments.back().chosen =
            i == 1 ? selections[i].view() : selections[i].view_for_scores(shape.heads);
      }
      const TestMatrix out = run(cache.view(), q.view(), segments, scale);
      expect_matches(out, q.view(), cache.view(), segments, scale);
      const reference::AttentionValues expected =
          reference::attention(q.view(), shape.heads, cache.view(), segments, scale);
      for (std::size_t i = 0; i < contexts.size(); ++i) {
        if (i == 1) continue;
        for (std::int64_t head = 0; head < shape.heads; ++head) {
          const std::vector<double> weights = selections[i].weights(head);
          const std::vector<double>& row =
              expected.weights[i * static_cast<std::size_t>(shape.heads) +
                               static_cast<std::size_t>(head)];
          ASSERT_EQ(weights.size(), row.size());
          for (std::size_t t = 0; t < row.size(); ++t) {
            ASSERT_NEAR(weights[t], row[t], 2e-5 * row[t] + 1e-30)
                << describe(shape) << " context " << contexts[i] << " head " << head << " ordinal "
                << t;
          }
        }
      }
    }
  }
}

TEST_P(SelectionTest, AllTokensGiveTheDenseResult) {
  for (const bool int8 : {false, true}) {
    const CacheShape shape{.heads = 6, .kv_heads = 2, .dim = 20, .page_tokens = 64, .int8 = int8};
    SequenceCache cache(shape, 700, *ops_, *stream_, random_);
    const TestMatrix q = TestMatrix(1, 120).randomize(random_);
    OwnedLists all;
    cache.add_list(all, 700, [](std::int64_t) { return true; });
    AttentionSegment segment = cache.segment(0, 1, 700);
    const TestMatrix dense = run(cache.view(), q.view(), {&segment, 1});
    segment.chosen = all.view();
    const TestMatrix out = run(cache.view(), q.view(), {&segment, 1});
    if (int8) {
      expect_matches(out, q.view(), cache.view(), {&segment, 1});
    } else {
      EXPECT_TRUE(same_bits(out.row(0), dense.row(0)));
    }
  }
}

TEST_P(SelectionTest, ResultsDoNotDependOnNeighboursThreadsOrPages) {
  for (const bool int8 : {false, true}) {
    const CacheShape shape{.heads = 4, .kv_heads = 2, .dim = 20, .int8 = int8};
    SequenceCache cache(shape, 1700, *ops_, *stream_, random_);
    const TestMatrix q = TestMatrix(3, 80).randomize(random_);
    OwnedLists lists;
    for (std::int64_t head = 0; head < 2; ++head) {
      cache.add_list(lists, 1700, [&](std::int64_t token) { return token % 2 == head; });
    }
    AttentionSegment segment = cache.segment(1, 1, 1700);
    segment.chosen = lists.view_for_scores(shape.heads);
    const TestMatrix alone = run(cache.view(), q.view(), {&segment, 1});
    cache.move_pages(random_);
    OwnedLists moved;
    for (std::int64_t head = 0; head < 2; ++head) {
      cache.add_list(moved, 1700, [&](std::int64_t token) { return token % 2 == head; });
    }
    const AttentionSegment before = cache.segment(0, 1, 100);
    const AttentionSegment after = cache.segment(2, 1, 1500);
    segment = cache.segment(1, 1, 1700);
    for (const int threads : {1, 2, 5}) {
      segment.chosen = moved.view_for_scores(shape.heads);
      ThreadPool pool(threads);
      const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
      const std::vector<AttentionSegment> batch = {after, segment, before};
      const TestMatrix out = run_on(*ops, threads, cache.view(), q.view(), batch);
      ASSERT_TRUE(same_bits(out.row(1), alone.row(1))) << describe(shape) << " " << threads;
      for (std::int64_t head = 0; head < shape.heads; ++head) {
        ASSERT_EQ(moved.weights(head), lists.weights(head)) << describe(shape) << " " << threads;
      }
    }
  }
}

TEST_P(SelectionTest, EmptyListsGiveZeros) {
  const CacheShape shape{.int8 = false};
  SequenceCache cache(shape, 50, *ops_, *stream_, random_);
  const TestMatrix q = TestMatrix(1, 80).randomize(random_);
  OwnedLists lists;
  cache.add_list(lists, 50, [](std::int64_t) { return false; });
  cache.add_list(lists, 50, [](std::int64_t token) { return token == 49; });
  AttentionSegment segment = cache.segment(0, 1, 50);
  segment.chosen = lists.view_for_scores(shape.heads);
  const std::vector<float> out = run(cache.view(), q.view(), {&segment, 1}).row(0);
  EXPECT_THAT(std::vector<float>(out.begin(), out.begin() + 40), testing::Each(0.0F));
  EXPECT_THAT(std::vector<float>(out.begin() + 40, out.end()),
              testing::Contains(testing::Ne(0.0F)));
  for (std::int64_t head = 0; head < shape.heads; ++head) {
    EXPECT_THAT(lists.weights(head), head < 2 ? testing::IsEmpty()
                                              : testing::Matcher<const std::vector<double>&>(
                                                    testing::ElementsAre(testing::DoubleEq(1.0))));
  }
}

TEST_P(SelectionTest, SeveralQueriesAttendTheirListUpToThemselves) {
  for (const bool int8 : {false, true}) {
    const CacheShape shape{.heads = 6, .kv_heads = 2, .dim = 20, .page_tokens = 64, .int8 = int8};
    constexpr std::int64_t kContext = 1340;
    // Queries of one block, more than one block of rows; the last list has nothing in front of
    // them. They see all of the list's tokens from kAllFrom on up to themselves.
    constexpr std::int64_t kQueries = 40;
    constexpr std::int64_t kAllFrom = kContext - kQueries - 3;
    SequenceCache cache(shape, kContext, *ops_, *stream_, random_);
    const TestMatrix q = TestMatrix(kQueries, 120, 3).randomize(random_);
    for (const bool shared : {true, false}) {
      const auto choose = [&](std::int64_t context) {
        OwnedLists lists;
        for (std::int64_t list = 0; list < (shared ? 1 : 2); ++list) {
          cache.add_list(lists, context, [&](std::int64_t token) {
            return token >= kAllFrom || (list == 0 && token * 7 % 11 < 4);
          });
        }
        return lists;
      };
      OwnedLists together = choose(kContext);
      Selection lists = *together.view();
      lists.all_from = kAllFrom;
      AttentionSegment segment = cache.segment(0, kQueries, kContext);
      segment.pages = {};
      segment.window = 3;
      segment.chosen = &lists;
      const TestMatrix out = run(cache.view(), q.view(), {&segment, 1});
      expect_matches(out, q.view(), cache.view(), {&segment, 1});
      for (std::int64_t row = 0; row < kQueries; ++row) {
        const std::int64_t context = kContext - kQueries + row + 1;
        OwnedLists own = choose(context);
        Selection list = *own.view();
        AttentionSegment one = cache.segment(0, 1, context);
        one.chosen = &list;
        const ConstMatrix query = q.view(row, 1);
        // Of INT8 blocks a list of one query's own is attended in another way.
        for (const std::int64_t all_from : {std::int64_t{-1}, kAllFrom}) {
          list.all_from = all_from;
          const TestMatrix alone = run(cache.view(), query, {&one, 1});
          if (all_from >= 0 || !int8) {
            ASSERT_TRUE(same_bits(out.row(row), alone.row(0)))
                << describe(shape) << " row " << row << " all from " << all_from;
          }
          expect_matches(alone, query, cache.view(), {&one, 1});
        }
      }
      // Some of those that chose together: their list ends with them.
      AttentionSegment some = cache.segment(0, 9, kContext - kQueries + 9);
      some.chosen = &lists;
      const TestMatrix part = run(cache.view(), q.view(), {&some, 1});
      for (std::int64_t row = 0; row < 9; ++row) {
        ASSERT_TRUE(same_bits(out.row(row), part.row(row))) << describe(shape) << " row " << row;
      }
    }
    OwnedLists all;
    cache.add_list(all, kContext, [](std::int64_t) { return true; });
    AttentionSegment segment = cache.segment(0, kQueries, kContext);
    const TestMatrix dense = run(cache.view(), q.view(), {&segment, 1});
    Selection everything = *all.view();
    everything.all_from = 0;
    segment.chosen = &everything;
    const TestMatrix out = run(cache.view(), q.view(), {&segment, 1});
    for (std::int64_t row = 0; !int8 && row < kQueries; ++row) {
      ASSERT_TRUE(same_bits(out.row(row), dense.row(row))) << row;
    }
    expect_matches(out, q.view(), cache.view(), {&segment, 1});
  }
}

// Without slots tokens lie in the segment's pages; so does an INT8 cache's own block with them.
TEST_P(SelectionTest, TokensLieWhereThePagesSay) {
  for (const bool int8 : {false, true}) {
    const CacheShape shape{.heads = 4, .kv_heads = 2, .dim = 20, .page_tokens = 64, .int8 = int8};
    SequenceCache cache(shape, 300, *ops_, *stream_, random_);
    const TestMatrix q = TestMatrix(1, 80).randomize(random_);
    OwnedLists lists = choose(cache, 300, 2, 3);
    AttentionSegment segment = cache.segment(0, 1, 300);
    segment.chosen = lists.view();
    const TestMatrix with_slots = run(cache.view(), q.view(), {&segment, 1});
    Selection bare = *segment.chosen;
    bare.slots = nullptr;
    segment.chosen = &bare;
    const TestMatrix by_pages = run(cache.view(), q.view(), {&segment, 1});
    EXPECT_TRUE(same_bits(by_pages.row(0), with_slots.row(0))) << describe(shape);
    std::vector<PageId> pages(segment.pages.begin(), segment.pages.end());
    pages[1] = PageId();
    segment.pages = pages;
    EXPECT_THROW((void)run(cache.view(), q.view(), {&segment, 1}), Error);
  }
}

// Scores are made four at a time: of a list the token before the own block's first may be another
// block's, whose place means nothing in the partial pages.
TEST_P(SelectionTest, PartialPagesAreReadForTheirOwnTokensAlone) {
  const CacheShape shape{.heads = 2, .kv_heads = 2, .dim = 20, .page_tokens = 64, .int8 = true};
  SequenceCache cache(shape, 300, *ops_, *stream_, random_);
  const TestMatrix q = TestMatrix(1, 40).randomize(random_);
  OwnedLists lists;
  cache.add_list(lists, 300, [](std::int64_t token) { return token > 0; });
  AttentionSegment segment = cache.segment(0, 1, 300);
  segment.chosen = lists.view();
  const TestMatrix expected = run(cache.view(), q.view(), {&segment, 1});
  // The own block's page alone, with nothing but closed memory behind it.
  constexpr std::size_t kMapped = std::size_t{16} << 20;
  constexpr std::size_t kOpen = 64 * 1024;
  const std::size_t bytes = std::size_t{2} * 64 * 20 * dtype_bytes(DType::kF16);
  KvLayerView view = cache.view();
  for (void** partial : {&view.partial_k, &view.partial_v}) {
    void* mapped = mmap(nullptr, kMapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    ASSERT_EQ(mprotect(mapped, kOpen, PROT_READ | PROT_WRITE), 0);
    const auto* own =
        static_cast<const std::byte*>(*partial) + segment.partial_page.index() * bytes;
    *partial = static_cast<std::byte*>(mapped) + kOpen - bytes;
    std::memcpy(*partial, own, bytes);
  }
  segment.partial_page = PageId(0);
  const TestMatrix out = run(view, q.view(), {&segment, 1});
  EXPECT_TRUE(same_bits(out.row(0), expected.row(0)));
  for (void* partial : {view.partial_k, view.partial_v}) {
    munmap(static_cast<std::byte*>(partial) + bytes - kOpen, kMapped);
  }
}

TEST_P(SelectionTest, RefusesBadLists) {
  const CacheShape shape{.int8 = false};
  SequenceCache cache(shape, 50, *ops_, *stream_, random_);
  const TestMatrix q = TestMatrix(2, 80).randomize(random_);
  const auto throws = [&](OwnedLists lists, std::int64_t queries, std::int64_t row = 0) {
    AttentionSegment segment = cache.segment(0, queries, 50);
    // Scores are of one query.
    segment.chosen = queries > 1 ? lists.view_for_scores(shape.heads) : lists.view();
    segment.chosen_row = row;
    EXPECT_THROW((void)run(cache.view(), q.view(), {&segment, 1}), Error);
  };
  throws({{0, 2}, {3, 3}, {3, 3}}, 1);
  throws({{0, 2}, {4, 3}, {4, 3}}, 1);
  throws({{0, 1}, {50}, {4}}, 1);
  throws({{0, 1}, {-1}, {4}}, 1);
  throws({{0, 1}, {5}, {-1}}, 1);
  throws({{0, 0, 0, 1}, {5}, {5}}, 1);
  throws({{0, 1}, {5}, {5}}, 2);
  throws({{0, 1}, {5}, {5}}, 1, 1);
  OwnedLists lists{{0, 1}, {5}, {5}};
  Selection longer = *lists.view();
  const std::int32_t two = 2;
  longer.counts = &two;
  AttentionSegment segment = cache.segment(0, 1, 50);
  segment.chosen = &longer;
  EXPECT_THROW((void)run(cache.view(), q.view(), {&segment, 1}), Error);
}

TRIPHASE_KERNEL_TARGETS(SelectionTest);

}  // namespace
}  // namespace triphase
