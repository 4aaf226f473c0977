#include <array>
#include <span>

#include "kernels/cpu/cpu_sparse_kernels.h"
#include "tests/support/drawn_weights.h"
#include "tests/support/plain_kept_lists.h"
#include "tests/support/top_indices.h"
#include "tests/unit/kernels/sparse_ops_fixture.h"

namespace triphase {
namespace {

TEST_P(SparseOpsTest, KeyScoresMatchReferenceOnAnyThreads) {
  for (const CacheShape& shape : shapes()) {
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
      EXPECT_TRUE(same_bits(
          result, scores(*make_cpu_sparse_ops(one, device_), 1, shape, cache, q, 1, context)));
    }
  }
}

// score_keys, the sums over a prompt, and what attention reports of chosen tokens.
TEST_P(SparseOpsTest, WeightsLeaveRoomForSinks) {
  const std::vector<float> sinks = {2.0F, -1.0F, 40.0F, 0.5F, 0.0F, 1.0F, -30.0F, 3.0F, 2.5F, 1.0F};
  const ScoreScale scale(0.25F, 0.0F, sinks.data());
  for (const CacheShape& shape : shapes()) {
    constexpr std::int64_t kTokens = 90;
    SequenceCache cache(shape, kTokens, *ops_, *stream_, random_);
    const TestMatrix q = TestMatrix(kTokens, shape.heads * shape.dim, 3).randomize(random_);
    const auto expected =
        reference::attention(q.view(), shape.heads, cache.view(), cache.prefill(1), scale);
    const auto weights = [&](std::int64_t row, std::int64_t head) {
      return expected.weights[static_cast<std::size_t>(row * shape.heads + head)];
    };
    const std::vector<float> scored =
        scores(*sparse_, 2, shape, cache, q, kTokens - 1, kTokens, scale);
    std::vector<float> sums(static_cast<std::size_t>(shape.kv_heads * kTokens), 0.0F);
    for (const AttentionSegment& segment :
         attended(cache.view(), q.view(), cache.prefill(31), scale)) {
      const PromptColumns chunk{segment, sums.data(), kTokens};
      sparse_->accumulate_columns(q.view(), shape.heads, cache.view(), {&chunk, 1}, scale,
                                  workspace(shape, segment.context_tokens, 2), *stream_);
    }
    const std::int64_t group = shape.heads / shape.kv_heads;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      for (std::int64_t head = 0; head < shape.heads; ++head) {
        const double weight = weights(kTokens - 1, head)[static_cast<std::size_t>(t)];
        ASSERT_NEAR(scored[static_cast<std::size_t>(head * kTokens + t)], weight,
                    5e-5 * weight + 1e-12)
            << describe(shape) << " head " << head << " token " << t;
      }
      for (std::int64_t list = 0; list < shape.kv_heads; ++list) {
        double sum = 0.0;
        for (std::int64_t row = t; row < kTokens; ++row) {
          for (std::int64_t head = list * group; head < (list + 1) * group; ++head) {
            sum += weights(row, head)[static_cast<std::size_t>(t)];
          }
        }
        ASSERT_NEAR(sums[static_cast<std::size_t>(list * kTokens + t)], sum, 1e-4 * sum + 1e-9)
            << describe(shape) << " list " << list << " token " << t;
      }
    }
  }
}

TEST_P(SparseOpsTest, TransposedKAreTheKeysOfFullBlocksTransposed) {
  constexpr std::int64_t kTokens = 300;
  for (const CacheShape& shape : shapes()) {
    for (const std::int64_t run : {1, 3, 8}) {
      SequenceCache cache(shape, kTokens, *ops_, *stream_, random_);
      const std::int64_t pages = pages_of(shape, kTokens);
      TransposedK columns(shape, kTokens, pages, run);
      const KvLayerView view = columns.beside(cache.view());
      const AttentionSegment keys = cache.segment(0, 1, 256);
      sparse_->transpose_keys(view, {&keys, 1}, *stream_);
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

TEST_P(SparseOpsTest, ColumnSumsMatchReferenceForAnyChunks) {
  for (const CacheShape& shape : shapes()) {
    const std::int64_t tokens = 100;
    SequenceCache cache(shape, tokens, *ops_, *stream_, random_);
    const TestMatrix q = TestMatrix(tokens, shape.heads * shape.dim, 1).randomize(random_);
    for (const std::int64_t first : {0, 70}) {
      std::vector<float> before;
      for (const std::int64_t chunk : {tokens, std::int64_t{7}}) {
        const std::vector<AttentionSegment> segments =
            attended(cache.view(), q.view(), cache.prefill(chunk));
        std::vector<float> sums(static_cast<std::size_t>(shape.kv_heads * tokens), 0.0F);
        for (AttentionSegment segment : segments) {
          const std::int64_t position = segment.context_tokens - segment.query_count;
          const std::int64_t left_out =
              std::clamp<std::int64_t>(first - position, 0, segment.query_count);
          segment.query_begin += left_out;
          segment.query_count -= left_out;
          const PromptColumns of_rows{segment, sums.data(), tokens};
          sparse_->accumulate_columns(q.view(), shape.heads, cache.view(), {&of_rows, 1}, 0.25F,
                                      workspace(shape, segment.context_tokens, 2), *stream_);
        }
        if (!before.empty()) {
          EXPECT_TRUE(same_bits(before, sums)) << describe(shape);
        }
        before = sums;
      }
      const auto expected =
          reference::attention(q.view(), shape.heads, cache.view(), cache.prefill(1), 0.25F);
      const std::int64_t group = shape.heads / shape.kv_heads;
      for (std::int64_t list = 0; list < shape.kv_heads; ++list) {
        std::vector<double> sums(static_cast<std::size_t>(tokens), 0.0);
        for (std::int64_t row = first; row < tokens; ++row) {
          for (std::int64_t head = list * group; head < (list + 1) * group; ++head) {
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

// Rows of one call whose lists shrink and grow, ties, and what is no number.
TEST_P(SparseOpsTest, KeptTokensAreThoseOfTheDefinitionOnAnyThreads) {
  constexpr std::int64_t kLists = 3;
  struct Row {
    std::int64_t prompt, budget, local;
    KeptRowLists lists;
  };
  for (const int threads : {1, 4}) {
    ThreadPool pool(threads);
    const auto ops = make_cpu_sparse_ops(pool, device_);
    std::vector<Row> rows;
    for (const auto& [prompt, budget, local] :
         {std::tuple<std::int64_t, std::int64_t, std::int64_t>{5000, 700, 175},
          {1, 6, 2},
          {40, 1, 1},
          {33, 100, 0},
          {64, 50, 50}}) {
      Row& row = rows.emplace_back(
          Row{prompt, budget, local, KeptRowLists(kLists, 1, std::max(prompt, budget) + 1)});
      const KeptTokens kept = row.lists.first_layer();
      ops->keep_all({&kept, 1}, prompt, *stream_);
      for (PlainKeptList& list : row.lists.plain) list.keep_all(prompt);
    }
    for (std::int64_t step = 0; step < 60; ++step) {
      std::vector<KeptRow> choices;
      for (Row& row : rows) {
        choices.push_back({.kept = row.lists.first_layer(),
                           .count = row.lists.count(),
                           .added = 1,
                           .context = row.prompt + step + 1,
                           .local = row.local,
                           .total = row.budget});
      }
      const Selection chosen = ops->keep_heaviest(choices, 1, *stream_);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        for (std::size_t list = 0; list < kLists; ++list) {
          PlainKeptList& plain = rows[i].lists.plain[list];
          plain.keep_heaviest(1, choices[i].context, choices[i].local, choices[i].total);
          const std::size_t at = i * kLists + list;
          const std::int32_t* tokens =
              chosen.tokens + static_cast<std::int64_t>(at) * chosen.capacity;
          ASSERT_EQ(std::vector<std::int32_t>(tokens, tokens + chosen.counts[at]), plain.tokens);
        }
        ASSERT_EQ(rows[i].lists.count(), tokens_left(choices[i]));
        ASSERT_NO_FATAL_FAILURE(rows[i].lists.expect_as_defined("step " + std::to_string(step)));
      }
      std::vector<float> weights(
          static_cast<std::size_t>(chosen.rows * chosen.lists * chosen.capacity));
      for (float& weight : weights) weight = draw_weight(random_);
      DrawnScores scores(weights, chosen.capacity);
      Selection attended = chosen;
      attended.scores = scores.view();
      std::vector<KeptWeights> added;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        added.push_back({choices[i].kept, rows[i].lists.count(), static_cast<std::int64_t>(i)});
        for (std::size_t list = 0; list < kLists; ++list) {
          rows[i].lists.plain[list].add(std::span(weights).subspan(
              (i * kLists + list) * static_cast<std::size_t>(chosen.capacity)));
        }
      }
      ops->add_kept_weights(attended, kLists * kDrawnHeads, added, 0, false, *stream_);
      for (const Row& row : rows) {
        ASSERT_NO_FATAL_FAILURE(row.lists.expect_as_defined("after step " + std::to_string(step)));
      }
    }
    const std::int64_t room = rows[1].lists.room;
    KeptRow beyond{.kept = rows[1].lists.first_layer(),
                   .count = room,
                   .added = 1,
                   .context = room + 1,
                   .total = 1};
    EXPECT_THROW((void)ops->keep_heaviest({&beyond, 1}, 1, *stream_), Error);
    EXPECT_THROW(ops->keep_all({&beyond.kept, 1}, room + 1, *stream_), Error);
    const KeptWeights row{beyond.kept, 2, 1};
    std::array<float, 4> numbers{};
    EXPECT_THROW(
        ops->add_kept_weights(
            {.rows = 1, .lists = kLists, .capacity = 2, .scores = {numbers.data(), numbers.data()}},
            kLists, {&row, 1}, 0, false, *stream_),
        Error);
  }
}

TEST_P(SparseOpsTest, WeightsOfTokensAreSummedOverTheHeadsOfTheirList) {
  constexpr std::int64_t kTokens = 300;
  for (const std::int64_t heads : {2, 6, 42}) {
    for (const std::int64_t lists : {std::int64_t{1}, heads / 2, heads}) {
      const TestMatrix values = TestMatrix(heads, kTokens).randomize(random_);
      std::vector<float> numbers(static_cast<std::size_t>(attended_floats(1, heads, kTokens)));
      float* const softmax = numbers.data();
      for (std::int64_t head = 0; head < heads; ++head) {
        softmax[2 * head] = 3.0F + values.at(head, 0);
        softmax[2 * head + 1] = 0.5F / static_cast<float>(head + 1);
        for (std::int64_t t = 0; t < kTokens; ++t) {
          softmax[2 * heads + head * kTokens + t] = std::min(values.at(head, t), softmax[2 * head]);
        }
      }
      const Selection attended{
          .rows = 1, .lists = lists, .capacity = kTokens, .scores = {softmax + 2 * heads, softmax}};
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(lists * kTokens));
      std::vector<float> sums(tokens.size(), 0.0F);
      const KeptWeights row{{tokens.data(), sums.data(), lists, kTokens}, kTokens - 1, 0};
      sparse_->add_kept_weights(attended, heads, {&row, 1}, 0, false, *stream_);
      for (std::int64_t list = 0; list < lists; ++list) {
        for (std::int64_t t = 0; t < kTokens; ++t) {
          double expected = 0.0;
          for (std::int64_t h = list * heads / lists; h < (list + 1) * heads / lists; ++h) {
            const double score = attended.scores.values[h * kTokens + t];
            expected += std::exp2(score - static_cast<double>(softmax[2 * h])) *
                        static_cast<double>(softmax[2 * h + 1]);
          }
          ASSERT_NEAR(sums[static_cast<std::size_t>(list * kTokens + t)],
                      t + 1 < kTokens ? expected : 0.0, 1e-6 * expected)
              << heads << " heads, " << lists << " lists, token " << t;
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
    const PageBounds late{data.data(), 50};
    sparse_->bound_pages(cache.view(), {&keys, 1}, {&late, 1}, 16, 0, *stream_);
    EXPECT_EQ(data[static_cast<std::size_t>(3 * shape.kv_heads * 2 * shape.dim - 1)], -7.0F);
    EXPECT_NE(data[static_cast<std::size_t>(3 * shape.kv_heads * 2 * shape.dim)], -7.0F);
    const PageBounds all{data.data(), 0};
    sparse_->bound_pages(cache.view(), {&keys, 1}, {&all, 1}, 16, 0, *stream_);
    const TestMatrix q = TestMatrix(2, shape.heads * shape.dim, 2).randomize(random_);
    std::vector<float> result(static_cast<std::size_t>(shape.kv_heads * pages));
    cpu::score_pages(pool_, q.view(), 1, shape.heads, shape.kv_heads, data.data(), pages,
                     result.data());
    const PageChoice four{data.data(), 4};
    AttentionSegment row = keys;
    row.query_begin = 1;
    const Selection chosen = sparse_->choose_by_pages(q.view(), shape.heads, shape.kv_heads,
                                                      {&row, 1}, {&four, 1}, 16, 0, *stream_);
    for (std::int64_t list = 0; list < shape.kv_heads; ++list) {
      // The newest page, of 11 tokens, and the three best of the others, ascending.
      const std::vector<std::int32_t> best = top_and_newest_indices(
          std::span(result).subspan(static_cast<std::size_t>(list * pages), 9), 4, 1);
      std::vector<std::int32_t> tokens;
      for (const std::int32_t page : best) {
        for (std::int32_t t = page * 16; t < std::min(139, page * 16 + 16); ++t) {
          tokens.push_back(t);
        }
      }
      ASSERT_EQ(chosen.counts[list], 3 * 16 + 11);
      const std::int32_t* begin = chosen.tokens + list * chosen.capacity;
      EXPECT_EQ(std::vector<std::int32_t>(begin, begin + chosen.counts[list]), tokens);
    }
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
  for (std::int64_t i = 0; i < kKvHeads * kCount; ++i) alive.push_back(i % 5 != 0 ? 1 : 0);
  constexpr std::int64_t kGroup = kHeads / kKvHeads;
  for (const bool pruned : {false, true}) {
    const Centroids centroids{means.floats(), keys.data(), kCount, pruned ? alive.data() : nullptr};
    std::vector<float> result(static_cast<std::size_t>(kKvHeads * kCount), -1.0F);
    sparse_->score_centroids(q.view(), 0, kHeads, kKvHeads, centroids, 0.3F, result.data(),
                             *stream_);
    for (std::int64_t i = 0; i < kKvHeads * kCount; ++i) {
      const std::int64_t row = i / kCount;
      const std::int64_t first = row * kCount;
      const auto counts = [&](std::int64_t j) {
        return keys[static_cast<std::size_t>(first + j)] > 0 &&
               (!pruned || alive[static_cast<std::size_t>(row * kCount + j)] != 0);
      };
      double expected = 0;
      for (std::int64_t head = row * kGroup; head < (row + 1) * kGroup; ++head) {
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
        expected += weight(i % kCount) / total / static_cast<double>(kGroup);
      }
      EXPECT_NEAR(result[static_cast<std::size_t>(i)], expected, 1e-5 * expected) << i;
    }
  }
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

// SparQ's sums of values, in two parts and two layers, and what takes the rest of the softmax.
TEST_P(SparseOpsTest, ReallocatedRowsTakeTheRestFromTheMean) {
  constexpr std::int64_t kLayer = 1;
  const CacheShape shape{.int8 = false};
  SequenceCache cache(shape, 50, *ops_, *stream_, random_);
  const std::int64_t width = shape.kv_heads * shape.dim;
  const TestMatrix v = TestMatrix(7, width, 3).randomize(random_);
  // The first part is all that is there, whatever lies in the sums' memory.
  std::vector<float> sums(static_cast<std::size_t>(2 * width), 7.0F);
  const auto layer_bytes = width * static_cast<std::int64_t>(sizeof(float));
  const std::vector<ValueRows> parts = {
      {.first_row = 1, .rows = 4, .sums = sums.data(), .layer_bytes = layer_bytes},
      {.first_row = 6, .rows = 0, .sums = sums.data(), .layer_bytes = layer_bytes},
      {.first_row = 5, .rows = 1, .sums = sums.data(), .layer_bytes = layer_bytes, .tokens = 4}};
  sparse_->sum_values(v.view(), parts, kLayer, false, *stream_);
  std::vector<float> expected(sums.size(), 7.0F);
  std::fill_n(expected.begin() + kLayer * width, width, 0.0F);
  for (std::int64_t row = 1; row < 6; ++row) {
    for (std::int64_t c = 0; c < width; ++c) {
      expected[static_cast<std::size_t>(kLayer * width + c)] += v.at(row, c);
    }
  }
  EXPECT_EQ(sums, expected);

  const TestMatrix q = TestMatrix(2, shape.heads * shape.dim, 2).randomize(random_);
  const std::vector<std::int32_t> tokens = {3, 17, 49, 8};
  const std::vector<std::int32_t> counts = {3, 0};
  const std::vector<float> alpha = {0.25F, 1.0F, 0.0F, 0.75F, 0.5F, 0.125F, 1.0F, 0.0F};
  ASSERT_EQ(shape.heads, 4);
  const std::vector<ValueMean> means(2, {sums.data(), 5, layer_bytes});
  Selection lists{.rows = 2, .capacity = 3, .tokens = tokens.data(), .counts = counts.data()};
  const auto attended = [&] {
    std::vector<AttentionSegment> rows(2, cache.segment(0, 1, 50));
    for (std::size_t row = 0; row < rows.size(); ++row) {
      rows[row].query_begin = static_cast<std::int64_t>(row);
      rows[row].chosen = &lists;
      rows[row].chosen_row = static_cast<std::int64_t>(row);
    }
    return run(cache.view(), q.view(), rows, 0.3F);
  };
  const TestMatrix plain = attended();
  lists.alpha = alpha.data();
  const TestMatrix shares = attended();
  lists.means = means.data();
  lists.layer = kLayer;
  const TestMatrix reallocated = attended();
  for (std::int64_t row = 0; row < 2; ++row) {
    for (std::int64_t c = 0; c < shape.heads * shape.dim; ++c) {
      const std::int64_t head = c / shape.dim;
      const float own = alpha[static_cast<std::size_t>(row * shape.heads + head)];
      const std::int64_t of_kv = head / (shape.heads / shape.kv_heads) * shape.dim + c % shape.dim;
      const float mean = expected[static_cast<std::size_t>(kLayer * width + of_kv)] * (1.0F / 5.0F);
      EXPECT_EQ(shares.at(row, c), own * plain.at(row, c));
      EXPECT_EQ(reallocated.at(row, c), own * plain.at(row, c) + (1.0F - own) * mean);
    }
  }
}

TRIPHASE_KERNEL_TARGETS(SparseOpsTest);

}  // namespace
}  // namespace triphase
