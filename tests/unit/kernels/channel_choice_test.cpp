// SparQ's choice of tokens by channels.

#include <algorithm>
#include <functional>
#include <numeric>

#include "tests/support/top_indices.h"
#include "tests/unit/kernels/sparse_ops_fixture.h"

namespace triphase {
namespace {

// What choose_by_channels returned.
struct Chosen {
  std::vector<std::int32_t> tokens;
  std::vector<float> alpha;
};

class ChannelChoiceTest : public SparseOpsTest {
 protected:
  Chosen choose(SparseOps& ops, int threads, const CacheShape& shape, const KvLayerView& view,
                const AttentionSegment& keys, const TestMatrix& q, const ChannelChoice& choice) {
    AttentionSegment row = keys;
    row.query_begin = 1;
    const float sums = 0.0F;  // not read by a choice
    const ValueMean mean{&sums, 1};
    const Selection lists = ops.choose_by_channels(
        q.view(), shape.heads, view, {&row, 1}, kScale, {&choice, 1}, {&mean, 1},
        workspace(shape, keys.context_tokens, threads), *stream_);
    EXPECT_EQ(lists.capacity, choice.tokens);
    EXPECT_EQ(lists.lists, shape.kv_heads);
    for (std::int64_t list = 0; list < lists.lists; ++list) {
      EXPECT_EQ(lists.counts[list], choice.tokens);
    }
    return {{lists.tokens, lists.tokens + lists.lists * lists.capacity},
            {lists.alpha, lists.alpha + shape.heads}};
  }

  // Every chosen token scores at least as high as every other, and alpha is its share, in float64.
  void expect_best(const CacheShape& shape, const KvLayerView& view, const AttentionSegment& keys,
                   const TestMatrix& q, const ChannelChoice& choice, const Chosen& chosen) {
    const std::int64_t context = keys.context_tokens;
    const std::int64_t group = shape.heads / shape.kv_heads;
    for (std::int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      std::vector<std::pair<double, std::int64_t>> sums;
      for (std::int64_t c = 0; c < shape.dim; ++c) {
        double sum = 0;
        for (std::int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
          sum += std::abs(q.at(1, h * shape.dim + c));
        }
        sums.emplace_back(-sum, c);
      }
      std::ranges::sort(sums);
      sums.resize(static_cast<std::size_t>(choice.rank));
      std::vector<double> score(static_cast<std::size_t>(context), 0.0);
      const std::span<const std::int32_t> list(chosen.tokens.data() + kv_head * choice.tokens,
                                               static_cast<std::size_t>(choice.tokens));
      for (std::int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
        double all = 0;
        for (std::int64_t c = 0; c < shape.dim; ++c) all += std::abs(q.at(1, h * shape.dim + c));
        double kept = 0;
        for (const auto& [sum, c] : sums) kept += std::abs(q.at(1, h * shape.dim + c));
        std::vector<double> weight;
        for (std::int64_t t = 0; t < context; ++t) {
          const auto k = reference::cached_row(view, keys, kv_head, t, false);
          double logit = 0;
          for (const auto& [sum, c] : sums) {
            logit += k[static_cast<std::size_t>(c)] * q.at(1, h * shape.dim + c);
          }
          const double ratio =
              choice.temperature == ChannelTemperature::kCoverage ? all / kept
              : choice.temperature == ChannelTemperature::kRank
                  ? static_cast<double>(shape.dim) / static_cast<double>(choice.rank)
                  : 1.0;
          weight.push_back(std::exp(kScale * logit * std::sqrt(ratio)));
          if (choice.sum_logits) score[static_cast<std::size_t>(t)] += std::log(weight.back());
        }
        const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
        double alpha = 0;
        for (const std::int32_t t : list) alpha += weight[static_cast<std::size_t>(t)] / total;
        EXPECT_NEAR(chosen.alpha[static_cast<std::size_t>(h)], alpha, 1e-4 * alpha);
        for (std::size_t t = 0; !choice.sum_logits && t < weight.size(); ++t) {
          score[t] += weight[t] / total;
        }
      }
      ASSERT_TRUE(std::ranges::is_sorted(list, std::less_equal<>())) << describe(shape);
      for (std::int64_t i = 0; i < choice.recent; ++i) {
        ASSERT_EQ(list[static_cast<std::size_t>(choice.tokens - 1 - i)], context - 1 - i);
      }
      double lowest = 1e300;
      double highest_left = -1e300;
      for (std::int64_t t = 0; t < context - choice.recent; ++t) {
        const double value = score[static_cast<std::size_t>(t)];
        if (std::ranges::binary_search(list, static_cast<std::int32_t>(t))) {
          lowest = std::min(lowest, value);
        } else {
          highest_left = std::max(highest_left, value);
        }
      }
      EXPECT_GE(lowest, highest_left - 1e-4 * std::abs(highest_left)) << describe(shape);
    }
  }

  static constexpr float kScale = 0.25F;
};

TEST_P(ChannelChoiceTest, TakesTheBestTokensAndSaysTheirShare) {
  for (const CacheShape& shape : shapes()) {
    SequenceCache cache(shape, 700, *ops_, *stream_, random_);
    const TestMatrix q = TestMatrix(2, shape.heads * shape.dim, 3).randomize(random_);
    for (const ChannelChoice& choice :
         {ChannelChoice{.rank = 5, .tokens = 40, .recent = 11},
          ChannelChoice{.rank = shape.dim, .tokens = 1, .recent = 0},
          ChannelChoice{.rank = 1, .tokens = 90, .recent = 90},
          ChannelChoice{.rank = 7, .tokens = 100, .recent = 1, .sum_logits = true},
          ChannelChoice{
              .rank = 5, .tokens = 40, .recent = 11, .temperature = ChannelTemperature::kHeadDim},
          ChannelChoice{
              .rank = 5, .tokens = 40, .recent = 11, .temperature = ChannelTemperature::kRank}}) {
      for (const std::int64_t context : {100, 129, 512, 700}) {
        const AttentionSegment keys = cache.segment(1, 1, context);
        expect_best(shape, cache.view(), keys, q, choice,
                    choose(*sparse_, 2, shape, cache.view(), keys, q, choice));
      }
    }
  }
}

// Of channels that weigh the same the first ones count.
TEST_P(ChannelChoiceTest, TiesOfChannelsGoToTheSmaller) {
  for (const CacheShape& shape : shapes()) {
    SequenceCache cache(shape, 100, *ops_, *stream_, random_);
    TestMatrix q(2, shape.heads * shape.dim, 3);
    const AttentionSegment keys = cache.segment(1, 1, 100);
    for (const std::int64_t period : {1, 3}) {
      for (std::int64_t i = 0; i < shape.heads * shape.dim; ++i) {
        const auto weight = static_cast<float>(1 + i % shape.dim % period);
        q.set(1, i, i % 2 == 0 ? weight : -weight);
      }
      const ChannelChoice choice{.rank = std::min<std::int64_t>(5, shape.dim), .tokens = 20};
      expect_best(shape, cache.view(), keys, q, choice,
                  choose(*sparse_, 2, shape, cache.view(), keys, q, choice));
    }
  }
}

// Whether a page has its K^T, and how many threads share the work, never changes a bit.
TEST_P(ChannelChoiceTest, DoesNotDependOnTransposedKPagesOrThreads) {
  constexpr std::int64_t kTokens = 1100;
  const ChannelChoice choice{.rank = 6, .tokens = 70, .recent = 17};
  for (const CacheShape& shape : shapes()) {
    SequenceCache cache(shape, kTokens, *ops_, *stream_, random_);
    const TestMatrix q = TestMatrix(2, shape.heads * shape.dim, 3).randomize(random_);
    const std::int64_t pages = pages_of(shape, kTokens);
    std::vector<PageId> ascending;
    for (std::int64_t page = 0; page < pages; ++page) {
      ascending.emplace_back(static_cast<std::int32_t>(page));
    }
    for (const std::int64_t context : {75, 1024, 1100}) {
      const AttentionSegment keys = cache.segment(1, 1, context);
      const Chosen expected = choose(*sparse_, 2, shape, cache.view(), keys, q, choice);
      for (const int threads : {1, 2, 5}) {
        ThreadPool pool(threads);
        const auto ops = make_cpu_sparse_ops(pool, device_);
        // K^T everywhere, for part of the pages, and made for one page alone; of pages apart and
        // side by side.
        for (const std::int64_t run : {1, 3, 8}) {
          AttentionSegment with_table = keys;
          if (run > 1) with_table.transposed_k = ascending;
          for (const std::int64_t places : {pages, pages / 2}) {
            TransposedK columns(shape, kTokens, places, run);
            const KvLayerView view = columns.beside(cache.view());
            for (int pass = 0; pass < 2; ++pass) {
              if (pass == 0 || places == pages)
                ops->transpose_keys(view, {&with_table, 1}, *stream_);
              if (pass == 1) columns.ready()[keys.pages[0].index()] = 0;
              const Chosen chosen = choose(*ops, threads, shape, view, with_table, q, choice);
              ASSERT_EQ(chosen.tokens, expected.tokens) << describe(shape) << " context " << context
                                                        << " threads " << threads << " run " << run;
              ASSERT_TRUE(same_bits(chosen.alpha, expected.alpha)) << describe(shape);
            }
          }
        }
      }
    }
    cache.move_pages(random_);
    const AttentionSegment keys = cache.segment(1, 1, kTokens);
    TransposedK columns(shape, kTokens, pages);
    const KvLayerView view = columns.beside(cache.view());
    sparse_->transpose_keys(view, {&keys, 1}, *stream_);
    const Chosen expected = choose(*sparse_, 2, shape, cache.view(), keys, q, choice);
    EXPECT_EQ(choose(*sparse_, 2, shape, view, keys, q, choice).tokens, expected.tokens);
  }
}

// One channel, so that scores are what the keys are: ties, NaN, infinities, and orders that an
// evenly spaced sample is wrong about.
TEST_P(ChannelChoiceTest, SelectsAsSortingDoes) {
  const CacheShape shape{
      .heads = 1, .kv_heads = 1, .dim = 1, .page_tokens = 64, .dtype = DType::kF32, .int8 = false};
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<std::function<float(std::int64_t)>> keys_of = {
      [&](std::int64_t) { return static_cast<float>(random_() % 4096) - 2048.0F; },
      [&](std::int64_t) { return static_cast<float>(random_() % 5); },
      [](std::int64_t) { return 1.0F; },
      [](std::int64_t t) { return static_cast<float>(t); },
      [](std::int64_t t) { return static_cast<float>(-t); },
      [](std::int64_t t) { return t % 8 == 0 ? static_cast<float>(t % 97) : -1.0F; },
      [](std::int64_t t) { return t % 3 == 0 ? 0.0F : -0.0F; },
      [&](std::int64_t t) {
        return t % 11 == 0 ? kNan : t % 7 == 0 ? -kInfinity : t % 5 == 0 ? kInfinity : 3.0F;
      }};
  TestMatrix q(2, 1);
  q.set(1, 0, 1.0F);
  for (const auto& key_of : keys_of) {
    for (const std::int64_t context : {1, 15, 64, 1000, 9001}) {
      std::vector<float> k(static_cast<std::size_t>(pages_of(shape, context) * 64));
      for (std::size_t t = 0; t < k.size(); ++t) k[t] = key_of(static_cast<std::int64_t>(t));
      std::vector<PageId> pages;
      for (std::int64_t p = 0; p < pages_of(shape, context); ++p) pages.emplace_back(p);
      KvLayerView view{k.data(), k.data(), DType::kF32, 64, 1, 1};
      const AttentionSegment keys{1, 1, context, pages, 0};
      k.resize(static_cast<std::size_t>(context));
      for (const std::int64_t tokens :
           {std::int64_t{1}, context / 100, context / 8, context / 2, context - 1, context}) {
        if (tokens < 1) continue;
        for (const std::int64_t recent : {std::int64_t{0}, tokens / 3}) {
          const Chosen chosen = choose(*sparse_, 2, shape, view, keys, q,
                                       {.rank = 1, .tokens = tokens, .recent = recent});
          ASSERT_EQ(chosen.tokens, top_and_newest_indices(k, tokens, recent))
              << "context " << context << " tokens " << tokens;
        }
      }
    }
  }
}

TEST_P(ChannelChoiceTest, RefusesBadArguments) {
  const CacheShape shape{.int8 = false};
  SequenceCache cache(shape, 50, *ops_, *stream_, random_);
  const TestMatrix q = TestMatrix(2, 80).randomize(random_);
  const AttentionSegment keys = cache.segment(0, 1, 50);
  for (const ChannelChoice& choice : {ChannelChoice{.rank = 0, .tokens = 4, .recent = 1},
                                      ChannelChoice{.rank = 21, .tokens = 4, .recent = 1},
                                      ChannelChoice{.rank = 4, .tokens = 51, .recent = 1},
                                      ChannelChoice{.rank = 4, .tokens = 4, .recent = 5}}) {
    EXPECT_THROW((void)choose(*sparse_, 2, shape, cache.view(), keys, q, choice), Error);
  }
  KvLayerView no_flags = cache.view();
  no_flags.kt = no_flags.k;
  EXPECT_THROW(sparse_->transpose_keys(no_flags, {&keys, 1}, *stream_), Error);
}

TRIPHASE_KERNEL_TARGETS(ChannelChoiceTest);

}  // namespace
}  // namespace triphase
