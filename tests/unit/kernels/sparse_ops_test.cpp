#include <algorithm>
#include <functional>
#include <numeric>

#include "kernels/cpu/cpu_sparse_ops.h"
#include "kernels/sizing/sparse_workspace.h"
#include "scheduler/attention/token_choice.h"
#include "tests/unit/kernels/kv_caches.h"

namespace triphase {
namespace {

class SparseOpsTest : public KvCacheTest {
 protected:
  void SetUp() override {
    KvCacheTest::SetUp();
    if (ops_ != nullptr) sparse_ = make_cpu_sparse_ops(pool_);
  }
  // The least workspace for one context, full of NaN.
  Workspace workspace(const CacheShape& shape, std::int64_t context, int threads) {
    const std::size_t bytes = sparse_workspace_bytes({.heads = shape.heads,
                                                      .kv_heads = shape.kv_heads,
                                                      .head_dim = shape.dim,
                                                      .max_query_rows = 1,
                                                      .max_context = context,
                                                      .threads = threads});
    memory_.assign(bytes + 64, std::byte{0xFF});
    const auto at = reinterpret_cast<std::uintptr_t>(memory_.data());
    return {memory_.data() + (64 - at % 64) % 64, bytes};
  }
  std::vector<float> scores(SparseOps& ops, int threads, const CacheShape& shape,
                            SequenceCache& cache, const TestMatrix& q, std::int64_t row,
                            std::int64_t context) {
    std::vector<float> result(static_cast<std::size_t>(shape.heads * context));
    ops.score_keys(q.view(), row, shape.heads, cache.view(), cache.segment(0, 1, context), 0.25F,
                   result.data(), context, workspace(shape, context, threads), *stream_);
    return result;
  }

  std::unique_ptr<SparseOps> sparse_;
  std::vector<std::byte> memory_;
};

std::vector<CacheShape> shapes() {
  return {{.dtype = DType::kF32, .int8 = false},
          {.heads = 3, .kv_heads = 3, .dim = 33, .page_tokens = 16, .int8 = false},
          {.heads = 8, .kv_heads = 1, .dim = 64, .dtype = DType::kBF16, .int8 = false},
          {.heads = 4, .kv_heads = 2, .dim = 20, .page_tokens = 32},
          {.heads = 10, .kv_heads = 1, .dim = 64, .page_tokens = 128}};
}

// What reads keys row by row also reads 4-bit rows.
std::vector<CacheShape> scored_shapes() {
  std::vector<CacheShape> all = shapes();
  all.push_back({.heads = 4, .kv_heads = 2, .dim = 20, .dtype = DType::kQ4, .int8 = false});
  all.push_back({.heads = 10, .kv_heads = 1, .dim = 80, .dtype = DType::kQ4, .int8 = false});
  return all;
}

TEST_P(SparseOpsTest, KeyScoresMatchReferenceOnAnyThreads) {
  for (const CacheShape& shape : scored_shapes()) {
    SequenceCache cache(shape, 1100, *ops_, *stream_, random_);
    const TestMatrix q = TestMatrix(2, shape.heads * shape.dim, 3).randomize(random_);
    for (const std::int64_t context : {1, 17, 64, 129, 1100}) {
      const std::vector<float> result = scores(*sparse_, 2, shape, cache, q, 1, context);
      AttentionSegment segment = cache.segment(1, 1, context);
      const auto expected =
          reference::attention(q.view(), shape.heads, cache.view(), {&segment, 1}, 0.25F);
      for (std::int64_t head = 0; head < shape.heads; ++head) {
        for (std::int64_t t = 0; t < context; ++t) {
          const double weight =
              expected.weights[static_cast<std::size_t>(head)][static_cast<std::size_t>(t)];
          ASSERT_NEAR(result[static_cast<std::size_t>(head * context + t)], weight,
                      5e-5 * weight + 1e-12)
              << describe(shape) << " context " << context << " head " << head << " token " << t;
        }
      }
      ThreadPool one(1);
      EXPECT_TRUE(
          same_bits(result, scores(*make_cpu_sparse_ops(one), 1, shape, cache, q, 1, context)));
    }
  }
}

// Memory for K^T beside a cache; pages beyond `pages` have no place there.
class KeyColumns {
 public:
  KeyColumns(const CacheShape& shape, std::int64_t tokens, std::int64_t pages, std::int64_t run = 1)
      : bytes_(static_cast<std::size_t>(pages * shape.kv_heads * shape.page_tokens * shape.dim) *
                   (shape.int8 ? 1 : dtype_bytes(shape.dtype)),
               std::byte{0xFF}),
        ready_(static_cast<std::size_t>(tokens / shape.page_tokens + 3), 0),
        pages_(pages),
        run_(run) {}
  [[nodiscard]] KvLayerView beside(KvLayerView cache) {
    cache.kt = bytes_.data();
    cache.kt_ready = ready_.data();
    cache.kt_pages = pages_;
    cache.kt_run = run_;
    return cache;
  }
  [[nodiscard]] std::vector<std::uint8_t>& ready() { return ready_; }
  [[nodiscard]] const std::byte* data() const { return bytes_.data(); }

 private:
  std::vector<std::byte> bytes_;
  std::vector<std::uint8_t> ready_;
  std::int64_t pages_;
  std::int64_t run_;
};

std::int64_t pages_of(const CacheShape& shape, std::int64_t tokens) {
  return (tokens + shape.page_tokens - 1) / shape.page_tokens + 2;
}

TEST_P(SparseOpsTest, KeyColumnsAreTheKeysOfFullBlocksTransposed) {
  constexpr std::int64_t kTokens = 300;
  for (const CacheShape& shape : shapes()) {
    for (const std::int64_t run : {1, 3, 8}) {
      SequenceCache cache(shape, kTokens, *ops_, *stream_, random_);
      const std::int64_t pages = pages_of(shape, kTokens);
      KeyColumns columns(shape, kTokens, pages, run);
      const KvLayerView view = columns.beside(cache.view());
      const AttentionSegment keys = cache.segment(0, 1, 256);
      sparse_->transpose_keys(view, keys, *stream_);
      const std::int64_t full = shape.int8 ? 255 / shape.page_tokens : 256 / shape.page_tokens;
      EXPECT_EQ(std::count(columns.ready().begin(), columns.ready().end(), 1), full);
      const std::size_t element = shape.int8 ? 1 : dtype_bytes(shape.dtype);
      const auto* k = static_cast<const std::byte*>(view.k);
      for (std::int64_t block = 0; block < full; ++block) {
        const PageId page = keys.pages[static_cast<std::size_t>(block)];
        ASSERT_EQ(columns.ready()[page.index()], 1);
        // Pages of a group, of which the last may be smaller, side by side in every channel.
        const std::int64_t group = page.value / run;
        const std::int64_t together = std::min(run, pages - group * run);
        for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
          const std::int64_t at =
              (page.value * shape.kv_heads + head) * shape.page_tokens * shape.dim;
          for (std::int64_t i = 0; i < shape.page_tokens * shape.dim; ++i) {
            const std::int64_t row = i / shape.dim;
            const std::int64_t channel = i % shape.dim;
            const std::int64_t column =
                group * run * shape.kv_heads * shape.dim * shape.page_tokens +
                ((head * shape.dim + channel) * together + page.value % run) * shape.page_tokens +
                row;
            ASSERT_EQ(
                std::memcmp(k + static_cast<std::size_t>(at + i) * element,
                            columns.data() + static_cast<std::size_t>(column) * element, element),
                0)
                << describe(shape) << " run " << run << " block " << block << " element " << i;
          }
        }
      }
    }
  }
}

// What choose_by_channels returned.
struct Chosen {
  std::vector<std::int32_t> tokens;
  std::vector<float> alpha;
};

class ChannelChoiceTest : public SparseOpsTest {
 protected:
  Chosen choose(SparseOps& ops, int threads, const CacheShape& shape, const KvLayerView& view,
                const AttentionSegment& keys, const TestMatrix& q, const ChannelChoice& choice) {
    Chosen chosen{
        std::vector<std::int32_t>(static_cast<std::size_t>(shape.kv_heads * choice.tokens)),
        std::vector<float>(static_cast<std::size_t>(shape.heads))};
    ops.choose_by_channels(q.view(), 1, shape.heads, view, keys, kScale, choice,
                           chosen.tokens.data(), chosen.alpha.data(),
                           workspace(shape, keys.context_tokens, threads), *stream_);
    return chosen;
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
        if (choice.channel_weights != nullptr) {
          sum *= choice.channel_weights[kv_head * shape.dim + c];
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
    std::vector<float> weights;
    for (std::int64_t i = 0; i < shape.kv_heads * shape.dim; ++i) {
      weights.push_back(std::uniform_real_distribution<float>(0.0F, 5.0F)(random_));
    }
    for (const ChannelChoice& choice :
         {ChannelChoice{.rank = 5, .tokens = 40, .recent = 11},
          ChannelChoice{.rank = 5, .tokens = 40, .recent = 11, .channel_weights = weights.data()},
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

// Whether a page has its K^T, and how many threads share the work, never changes a bit.
TEST_P(ChannelChoiceTest, DoesNotDependOnKeyColumnsPagesOrThreads) {
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
        const auto ops = make_cpu_sparse_ops(pool);
        // K^T everywhere, for part of the pages, and made for one page alone; of pages apart and
        // side by side.
        for (const std::int64_t run : {1, 3, 8}) {
          AttentionSegment with_table = keys;
          if (run > 1) with_table.key_columns = ascending;
          for (const std::int64_t places : {pages, pages / 2}) {
            KeyColumns columns(shape, kTokens, places, run);
            const KvLayerView view = columns.beside(cache.view());
            for (int pass = 0; pass < 2; ++pass) {
              if (pass == 0 || places == pages) ops->transpose_keys(view, with_table, *stream_);
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
    KeyColumns columns(shape, kTokens, pages);
    const KvLayerView view = columns.beside(cache.view());
    sparse_->transpose_keys(view, keys, *stream_);
    const Chosen expected = choose(*sparse_, 2, shape, cache.view(), keys, q, choice);
    EXPECT_EQ(choose(*sparse_, 2, shape, view, keys, q, choice).tokens, expected.tokens);
  }
}

// Blocks of which there are only the query's channels, without a page, score as their keys do.
TEST_P(ChannelChoiceTest, DoesNotDependOnWhatWasGathered) {
  constexpr std::int64_t kTokens = 1100;
  const ChannelChoice choice{.rank = 6, .tokens = 70, .recent = 17};
  for (const CacheShape& shape : shapes()) {
    SequenceCache cache(shape, kTokens, *ops_, *stream_, random_);
    const TestMatrix q = TestMatrix(2, shape.heads * shape.dim, 3).randomize(random_);
    AttentionSegment keys = cache.segment(1, 1, kTokens);
    const Chosen expected = choose(*sparse_, 2, shape, cache.view(), keys, q, choice);
    KeyColumns columns(shape, kTokens, pages_of(shape, kTokens));
    const KvLayerView view = columns.beside(cache.view());
    sparse_->transpose_keys(view, keys, *stream_);

    std::vector<std::int32_t> channels(static_cast<std::size_t>(shape.kv_heads * choice.rank));
    sparse_->largest_channels(q.view(), 1, shape.heads, shape.kv_heads, choice, channels.data(),
                              *stream_);
    const std::int64_t full = (kTokens - (shape.int8 ? 1 : 0)) / shape.page_tokens;
    // Two of three full blocks are gathered, the newest first.
    std::vector<std::int32_t> places(static_cast<std::size_t>(full), -1);
    std::vector<PageId> pages(keys.pages.begin(), keys.pages.end());
    std::int32_t gathered = 0;
    for (std::int64_t block = full; block-- > 0;) {
      if (block % 3 == 1) continue;
      places[static_cast<std::size_t>(block)] = gathered++;
      pages[static_cast<std::size_t>(block)] = PageId();
    }
    const std::size_t run =
        static_cast<std::size_t>(shape.page_tokens) * (shape.int8 ? 1 : dtype_bytes(shape.dtype));
    const std::int64_t stride = gathered + 2;
    std::vector<std::byte> bytes(channels.size() * static_cast<std::size_t>(stride) * run,
                                 std::byte{0xFF});
    for (std::size_t index = 0; index < channels.size(); ++index) {
      const std::int64_t head = static_cast<std::int64_t>(index) / choice.rank;
      for (std::int64_t block = 0; block < full; ++block) {
        const std::int32_t place = places[static_cast<std::size_t>(block)];
        if (place < 0) continue;
        const std::int64_t page = keys.pages[static_cast<std::size_t>(block)].value;
        const std::int64_t from = (page * shape.kv_heads + head) * shape.dim + channels[index];
        const std::int64_t to = static_cast<std::int64_t>(index) * stride + place;
        std::memcpy(bytes.data() + static_cast<std::size_t>(to) * run,
                    columns.data() + static_cast<std::size_t>(from) * run, run);
      }
    }
    keys.pages = pages;
    keys.gathered = {bytes.data(), stride, places};
    for (const int threads : {1, 5}) {
      ThreadPool pool(threads);
      const auto ops = make_cpu_sparse_ops(pool);
      const Chosen chosen = choose(*ops, threads, shape, cache.view(), keys, q, choice);
      EXPECT_EQ(chosen.tokens, expected.tokens) << describe(shape) << " threads " << threads;
      EXPECT_TRUE(same_bits(chosen.alpha, expected.alpha)) << describe(shape);
    }
  }
}

// One channel, so that scores are what the keys are: ties, NaN, infinities, and orders that an
// evenly spaced sample is wrong about.
TEST_P(ChannelChoiceTest, SelectsAsChooseTopDoes) {
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
  std::vector<std::uint32_t> scratch;
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
          std::vector<std::int32_t> expected;
          const IndexRange forced{context - recent, context};
          choose_top(k, tokens - recent, {&forced, 1}, scratch, expected);
          ASSERT_EQ(chosen.tokens, expected) << "context " << context << " tokens " << tokens;
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
  EXPECT_THROW(sparse_->transpose_keys(no_flags, keys, *stream_), Error);
}

TEST_P(SparseOpsTest, ColumnSumsMatchReferenceForAnyChunks) {
  for (const CacheShape& shape : scored_shapes()) {
    const std::int64_t tokens = 100;
    SequenceCache cache(shape, tokens, *ops_, *stream_, random_);
    const TestMatrix q = TestMatrix(tokens, shape.heads * shape.dim, 1).randomize(random_);
    for (const auto& [first, scope] : {std::pair<std::int64_t, HeadScope>{0, HeadScope::kKvHead},
                                       {70, HeadScope::kKvHead},
                                       {70, HeadScope::kQueryHead}}) {
      const std::int64_t lists = scope == HeadScope::kKvHead ? shape.kv_heads : shape.heads;
      std::vector<float> before;
      for (const std::int64_t chunk : {tokens, std::int64_t{7}}) {
        const std::vector<AttentionSegment> segments = cache.prefill(chunk);
        std::vector<float> sums(static_cast<std::size_t>(lists * tokens), 0.0F);
        for (const AttentionSegment& segment : segments) {
          const std::int64_t position = segment.context_tokens - segment.query_count;
          sparse_->sum_columns(q.view(), shape.heads, scope, cache.view(), segment,
                               std::max<std::int64_t>(0, first - position), 0.25F, sums.data(),
                               tokens, workspace(shape, segment.context_tokens, 2), *stream_);
        }
        if (!before.empty()) {
          EXPECT_TRUE(same_bits(before, sums)) << describe(shape);
        }
        before = sums;
      }
      const auto expected =
          reference::attention(q.view(), shape.heads, cache.view(), cache.prefill(1), 0.25F);
      for (std::int64_t list = 0; list < lists; ++list) {
        std::vector<double> sums(static_cast<std::size_t>(tokens), 0.0);
        const std::int64_t together = shape.heads / lists;
        for (std::int64_t row = first; row < tokens; ++row) {
          for (std::int64_t head = list * together; head < (list + 1) * together; ++head) {
            const std::vector<double>& weights =
                expected.weights[static_cast<std::size_t>(row * shape.heads + head)];
            for (std::size_t t = 0; t < weights.size(); ++t) sums[t] += weights[t];
          }
        }
        for (std::size_t t = 0; t < sums.size(); ++t) {
          ASSERT_NEAR(before[static_cast<std::size_t>(list * tokens) + t], sums[t],
                      1e-4 * sums[t] + 1e-9)
              << describe(shape);
        }
      }
    }
  }
}

TEST_P(SparseOpsTest, PageBoundsAreTightAndScoresBoundEveryLogit) {
  for (const CacheShape& shape : shapes()) {
    const std::int64_t context = 139;
    const std::int64_t pages = 9;
    SequenceCache cache(shape, 150, *ops_, *stream_, random_);
    const AttentionSegment keys = cache.segment(0, 1, context);
    std::vector<float> data(static_cast<std::size_t>(pages * shape.kv_heads * 2 * shape.dim),
                            -7.0F);
    const PageBounds bounds{data.data(), 16};
    sparse_->bound_pages(cache.view(), keys, 50, bounds, *stream_);
    EXPECT_EQ(data[static_cast<std::size_t>(3 * shape.kv_heads * 2 * shape.dim - 1)], -7.0F);
    EXPECT_NE(data[static_cast<std::size_t>(3 * shape.kv_heads * 2 * shape.dim)], -7.0F);
    sparse_->bound_pages(cache.view(), keys, 0, bounds, *stream_);
    const TestMatrix q = TestMatrix(2, shape.heads * shape.dim, 2).randomize(random_);
    std::vector<float> result(static_cast<std::size_t>(shape.kv_heads * pages));
    sparse_->score_pages(q.view(), 1, shape.heads, shape.kv_heads, HeadScope::kKvHead, bounds,
                         pages, result.data(), pages, *stream_);
    std::vector<float> by_head(static_cast<std::size_t>(shape.heads * pages));
    sparse_->score_pages(q.view(), 1, shape.heads, shape.kv_heads, HeadScope::kQueryHead, bounds,
                         pages, by_head.data(), pages, *stream_);
    const std::int64_t group = shape.heads / shape.kv_heads;
    for (std::int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      for (std::int64_t page = 0; page < pages; ++page) {
        std::vector<double> low(static_cast<std::size_t>(shape.dim), 1e30);
        std::vector<double> high(static_cast<std::size_t>(shape.dim), -1e30);
        double largest = -1e30;
        for (std::int64_t t = page * 16; t < std::min<std::int64_t>(context, page * 16 + 16); ++t) {
          const std::vector<double> k =
              reference::cached_row(cache.view(), keys, kv_head, t, false);
          for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
            double logit = 0;
            for (std::int64_t c = 0; c < shape.dim; ++c) {
              logit += k[static_cast<std::size_t>(c)] * q.at(1, head * shape.dim + c);
            }
            largest = std::max(largest, logit);
          }
          for (std::size_t c = 0; c < k.size(); ++c) {
            low[c] = std::min(low[c], k[c]);
            high[c] = std::max(high[c], k[c]);
          }
        }
        double expected = -1e30;
        for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          double sum = 0;
          for (std::int64_t c = 0; c < shape.dim; ++c) {
            const double in = q.at(1, head * shape.dim + c);
            sum += std::max(in * low[static_cast<std::size_t>(c)],
                            in * high[static_cast<std::size_t>(c)]);
          }
          expected = std::max(expected, sum);
        }
        const float score = result[static_cast<std::size_t>(kv_head * pages + page)];
        EXPECT_NEAR(score, expected, 1e-4) << describe(shape);
        EXPECT_GE(score, largest - 1e-4) << describe(shape);
        // Of the heads' own scores it is the largest, bit for bit.
        float best = -1e30F;
        for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          best = std::max(best, by_head[static_cast<std::size_t>(head * pages + page)]);
        }
        EXPECT_EQ(best, score) << describe(shape);
      }
    }
  }
}

TEST_P(SparseOpsTest, CentroidScoresMatchEquationOne) {
  constexpr std::int64_t kHeads = 6;
  constexpr std::int64_t kKvHeads = 2;
  constexpr std::int64_t kCount = 11;
  constexpr std::int64_t kDim = 20;
  const TestMatrix q = TestMatrix(1, kHeads * kDim).randomize(random_);
  const TestMatrix means = TestMatrix(kKvHeads * kCount, kDim).randomize(random_);
  std::vector<float> keys;
  for (std::int64_t i = 0; i < kKvHeads * kCount; ++i) keys.push_back(static_cast<float>(i % 4));
  std::vector<std::uint8_t> alive;
  for (std::int64_t i = 0; i < kHeads * kCount; ++i) alive.push_back(i % 5 != 0 ? 1 : 0);
  for (const HeadScope scope : {HeadScope::kKvHead, HeadScope::kQueryHead}) {
    const std::int64_t rows = scope == HeadScope::kKvHead ? kKvHeads : kHeads;
    const std::int64_t together = kHeads / rows;
    for (const bool pruned : {false, true}) {
      const Centroids centroids{means.floats(), keys.data(), kCount,
                                pruned ? alive.data() : nullptr};
      std::vector<float> result(static_cast<std::size_t>(rows * kCount), -1.0F);
      sparse_->score_centroids(q.view(), 0, kHeads, kKvHeads, scope, centroids, 0.3F, result.data(),
                               *stream_);
      for (std::int64_t i = 0; i < rows * kCount; ++i) {
        const std::int64_t row = i / kCount;
        const std::int64_t first = row * together / (kHeads / kKvHeads) * kCount;  // of the KV head
        const auto counts = [&](std::int64_t j) {
          return keys[static_cast<std::size_t>(first + j)] > 0 &&
                 (!pruned || alive[static_cast<std::size_t>(row * kCount + j)] != 0);
        };
        double expected = 0;
        for (std::int64_t head = row * together; head < (row + 1) * together; ++head) {
          if (!counts(i % kCount)) break;
          const auto weight = [&](std::int64_t j) {
            double sum = 0;
            for (std::int64_t c = 0; c < kDim; ++c) {
              sum += q.at(0, head * kDim + c) * means.at(first + j, c);
            }
            return std::exp(0.3 * sum);
          };
          double total = 0;
          for (std::int64_t j = 0; j < kCount; ++j) {
            if (counts(j)) total += keys[static_cast<std::size_t>(first + j)] * weight(j);
          }
          expected += weight(i % kCount) / total / static_cast<double>(together);
        }
        EXPECT_NEAR(result[static_cast<std::size_t>(i)], expected, 1e-5 * expected) << i;
      }
    }
  }
}

// 127 lambda of the blocks asked for, and what is there already stays if it is more.
TEST_P(SparseOpsTest, KeyRangesAreTheLargestOfTheBlocks) {
  const CacheShape shape{.heads = 4, .kv_heads = 2, .dim = 20, .page_tokens = 32};
  SequenceCache cache(shape, 300, *ops_, *stream_, random_);
  const AttentionSegment keys = cache.segment(0, 1, 300);
  std::vector<float> ranges(40, 0.0F);
  ranges[7] = 1e6F;
  sparse_->widen_key_ranges(cache.view(), keys, 2, 9, ranges.data(), *stream_);
  for (std::int64_t head = 0; head < 2; ++head) {
    for (std::int64_t c = 0; c < 20; ++c) {
      float expected = head * 20 + c == 7 ? 1e6F : 0.0F;
      for (std::size_t block = 2; block < 9; ++block) {
        const std::int64_t page = keys.scale_pages[block].value;
        const auto at = static_cast<std::size_t>(((page * 2) * 2 + head) * 2 * 20 + c);
        expected = std::max(expected, 127.0F * cache.scales()[at]);
      }
      EXPECT_EQ(ranges[static_cast<std::size_t>(head * 20 + c)], expected);
    }
  }
  EXPECT_THROW(sparse_->widen_key_ranges(cache.view(), keys, 0, 11, ranges.data(), *stream_),
               Error);
}

TEST_P(SparseOpsTest, RefusesBadArguments) {
  const CacheShape shape{.int8 = false};
  SequenceCache cache(shape, 50, *ops_, *stream_, random_);
  const TestMatrix q = TestMatrix(1, 80).randomize(random_);
  std::vector<float> to(400);
  const Workspace enough = workspace(shape, 50, 2);
  const AttentionSegment keys = cache.segment(0, 1, 50);
  const auto score = [&](std::int64_t row, std::int64_t stride, Workspace space) {
    sparse_->score_keys(q.view(), row, 4, cache.view(), keys, 1.0F, to.data(), stride, space,
                        *stream_);
  };
  EXPECT_THROW(score(1, 50, enough), Error);
  EXPECT_THROW(score(0, 49, enough), Error);
  EXPECT_THROW(score(0, 50, {enough.data, 64}), Error);
  score(0, 50, enough);
}

TEST_P(SparseOpsTest, WhatReadsChannelsRefuses4BitKeys) {
  const CacheShape shape{.dtype = DType::kQ4, .int8 = false};
  SequenceCache cache(shape, 64, *ops_, *stream_, random_);
  const TestMatrix q = TestMatrix(1, shape.heads * shape.dim).randomize(random_);
  const AttentionSegment keys = cache.segment(0, 1, 64);
  std::vector<float> bounds(1024);
  EXPECT_THROW(sparse_->transpose_keys(cache.view(), keys, *stream_), Error);
  EXPECT_THROW(sparse_->bound_pages(cache.view(), keys, 0, {bounds.data(), 16}, *stream_), Error);
  std::vector<std::int32_t> tokens(16);
  EXPECT_THROW(sparse_->choose_by_channels(q.view(), 0, shape.heads, cache.view(), keys, 0.25F,
                                           {.rank = 4, .tokens = 8}, tokens.data(), nullptr,
                                           workspace(shape, 64, 2), *stream_),
               Error);
}

TRIPHASE_KERNEL_TARGETS(SparseOpsTest);
TRIPHASE_KERNEL_TARGETS(ChannelChoiceTest);

}  // namespace
}  // namespace triphase
