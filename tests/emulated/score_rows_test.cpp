#include "kernels/cuda/score_rows.h"

#include <algorithm>
#include <numeric>

#include "tests/emulated/score_fixture.h"

namespace triphase::cuda {
namespace {

void check_sparq(DType dtype, std::int64_t group, std::int64_t dim, std::int64_t rank,
                 bool with_channels, std::uint32_t seed) {
  std::mt19937 random(seed);
  const std::vector<std::int32_t> lengths = {1, 127, 128, 129, 300};
  const PagedCache cache(random, dtype, lengths, 64, 2, dim, with_channels);
  const std::int64_t heads = 2 * group;
  const auto sequences = static_cast<std::int64_t>(lengths.size());
  const std::vector<float> q = random_floats(random, sequences * heads * dim);
  const ScoreQueries queries{q.data(), heads * dim, heads};
  std::vector<std::int32_t> channels(static_cast<std::size_t>(sequences * 2 * rank), -1);
  std::vector<float> factors = poisoned(sequences * heads);
  choose_channels(queries, sequences, 2, dim, rank, {1.0F / std::sqrt(static_cast<float>(dim))},
                  channels.data(), factors.data(), nullptr);
  Scored scored = make_scored(sequences, heads, cache.max_length, 2);
  score_sparq(keys_of(cache), queries, channels.data(), factors.data(), rank, scored.view, nullptr);
  group_scores(scored.view, cache.lengths.data(), 2, sequences * 2, group, cache.max_length,
               GroupReduce::kProbabilitySum, scored.scores.data(), scored.totals.data(), nullptr);
  // Every third token, to check the share that a selection holds.
  const std::int64_t capacity = 100;
  std::vector<std::int32_t> indices(static_cast<std::size_t>(sequences * 2 * capacity), -1);
  std::vector<std::int32_t> counts(static_cast<std::size_t>(sequences * 2), 0);
  for (std::int64_t row = 0; row < sequences * 2; ++row) {
    for (std::int32_t t = 0; t < lengths[static_cast<std::size_t>(row / 2)]; t += 3) {
      indices[static_cast<std::size_t>(row * capacity + counts[static_cast<std::size_t>(row)]++)] =
          t;
    }
  }
  std::vector<float> alpha = poisoned(sequences * heads);
  selected_share(scored.view, scored.totals.data(), indices.data(), capacity, counts.data(),
                 sequences * 2, group, alpha.data(), nullptr);
  for (std::int64_t b = 0; b < sequences; ++b) {
    for (std::int64_t kv = 0; kv < 2; ++kv) {
      const std::int64_t row = b * 2 + kv;
      const float* row_q = q.data() + (b * heads + kv * group) * dim;
      const auto chosen = best_channels(row_q, group, dim, rank);
      const std::vector<std::int32_t> found(channels.begin() + row * rank,
                                            channels.begin() + (row + 1) * rank);
      ASSERT_EQ(found, chosen);
      const SparqRow expected = sparq_row(cache, b, kv, row_q, group, rank);
      for (std::int64_t g = 0; g < group; ++g) {
        const std::vector<double>& p = expected.probabilities[static_cast<std::size_t>(g)];
        double share = 0.0;
        for (std::size_t t = 0; t < p.size(); t += 3) share += p[t];
        ASSERT_NEAR(alpha[static_cast<std::size_t>(row * group + g)], share, 2e-5);
      }
      for (std::size_t t = 0; t < expected.scores.size(); ++t) {
        const float score =
            scored.scores[static_cast<std::size_t>(row * scored.view.length_stride) + t];
        ASSERT_NEAR(score, expected.scores[t], 2e-5 * expected.scores[t] + 1e-7)
            << "row " << row << " token " << t;
      }
      ASSERT_TRUE(
          std::isnan(scored.scores[static_cast<std::size_t>(row * scored.view.length_stride) +
                                   expected.scores.size()]));
    }
  }
}

TEST(EmulatedScore, SparqMatchesFloat64ForGroupsTypesAndOddHeads) {
  std::uint32_t seed = 1;
  for (const std::int64_t group : {1, 2, 3, 8})
    check_sparq(DType::kF16, group, 20, 7, true, seed++);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kInt8}) {
    check_sparq(dtype, 2, 24, 8, dtype == DType::kF32, seed++);
  }
  check_sparq(DType::kF16, 1, 13, 13, false, seed++);  // all channels: tau is sqrt(d)
}

TEST(EmulatedScore, SparqWithZeroQueriesIsUniform) {
  std::mt19937 random(20);
  const PagedCache cache(random, DType::kF32, {40}, 16, 1, 8);
  const std::vector<float> q(8, 0.0F);
  const ScoreQueries queries{q.data(), 8, 1};
  std::vector<std::int32_t> channels(4);
  std::vector<float> factor(1);
  choose_channels(queries, 1, 1, 8, 4, {1.0F / std::sqrt(8.0F)}, channels.data(), factor.data(),
                  nullptr);
  EXPECT_THAT(channels, testing::ElementsAre(0, 1, 2, 3));
  Scored scored = make_scored(1, 1, 40, 1);
  score_sparq(keys_of(cache), queries, channels.data(), factor.data(), 4, scored.view, nullptr);
  group_scores(scored.view, cache.lengths.data(), 1, 1, 1, 40, GroupReduce::kProbabilitySum,
               scored.scores.data(), scored.totals.data(), nullptr);
  for (int t = 0; t < 40; ++t)
    EXPECT_NEAR(scored.scores[static_cast<std::size_t>(t)], 1.0 / 40, 1e-7);
}

TEST(EmulatedScore, ExactMatchesFloat64) {
  std::uint32_t seed = 30;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8}) {
    for (const std::int64_t group : {1, 4, 7}) {
      std::mt19937 random(seed++);
      const std::int64_t dim = group == 4 ? 136 : 20;
      const PagedCache cache(random, dtype, {0, 1, 64, 200}, 32, 2, dim);
      const std::int64_t heads = 2 * group;
      const std::vector<float> q = random_floats(random, 4 * heads * dim, 0.5F);
      const ScoreQueries queries{q.data(), heads * dim, heads};
      Scored scored = make_scored(4, heads, cache.max_length, 2);
      score_exact(keys_of(cache), queries, 0.1F, scored.view, nullptr);
      group_scores(scored.view, cache.lengths.data(), 2, 8, group, cache.max_length,
                   GroupReduce::kProbabilityMean, scored.scores.data(), scored.totals.data(),
                   nullptr);
      std::vector<std::int32_t> all(static_cast<std::size_t>(dim));
      std::iota(all.begin(), all.end(), 0);
      for (std::int64_t row = 0; row < 8; ++row) {
        std::vector<double> expected(
            static_cast<std::size_t>(cache.lengths[static_cast<std::size_t>(row / 2)]));
        for (std::int64_t g = 0; g < group; ++g) {
          const float* head_q = q.data() + ((row / 2) * heads + (row % 2) * group + g) * dim;
          const auto p = probabilities(cache, row / 2, row % 2, head_q, all, 0.1F);
          for (std::size_t t = 0; t < p.size(); ++t)
            expected[t] += p[t] / static_cast<double>(group);
        }
        for (std::size_t t = 0; t < expected.size(); ++t) {
          ASSERT_NEAR(scored.scores[static_cast<std::size_t>(row * scored.view.length_stride) + t],
                      expected[t], 2e-5 * expected[t] + 1e-7)
              << "row " << row << " token " << t;
        }
      }
    }
  }
}

// Two sequences over the same clusters of three KV heads; which are alive is each one's own.
TEST(EmulatedScore, CentroidsAreWeighedByTheirMembers) {
  std::mt19937 random(50);
  constexpr std::int64_t kDim = 12;
  for (const std::int32_t count : {1, 129, 150}) {
    const std::vector<float> centroids = random_floats(random, 3 * count * kDim);
    std::vector<float> members(static_cast<std::size_t>(3 * count));
    for (auto& one : members) one = static_cast<float>(random() % 5);  // some are empty
    std::vector<std::uint8_t> alive(2 * members.size());
    for (auto& flag : alive) flag = random() % 6 == 0 ? 0 : 1;
    for (std::int64_t row = 0; row < 6; ++row) {
      members[static_cast<std::size_t>(row % 3 * count)] = 2.0F;
      alive[static_cast<std::size_t>(row * count)] = 1;
    }
    const std::vector<float> q = random_floats(random, 2 * 6 * kDim);
    const ScoreQueries queries{q.data(), 6 * kDim, 6};
    Scored scored = make_scored(2, 6, count, 3);
    score_centroids({.centroids = centroids.data(),
                     .keys = members.data(),
                     .alive = alive.data(),
                     .count = count,
                     .sequences = 2,
                     .kv_heads = 3,
                     .head_dim = kDim},
                    queries, 0.3F, scored.view, nullptr);
    const std::vector<std::int32_t> lengths = {count};
    group_scores(scored.view, lengths.data(), 6, 6, 2, count, GroupReduce::kProbabilityMean,
                 scored.scores.data(), scored.totals.data(), nullptr);
    for (std::int64_t row = 0; row < 6; ++row) {
      const std::int64_t first = row % 3 * count;
      std::vector<double> expected(static_cast<std::size_t>(count));
      for (std::int64_t g = 0; g < 2; ++g) {
        std::vector<double> weight;
        double sum = 0.0;
        for (std::int64_t i = 0; i < count; ++i) {
          double dot = 0.0;
          for (std::int64_t c = 0; c < kDim; ++c) {
            dot += static_cast<double>(q[static_cast<std::size_t>((row * 2 + g) * kDim + c)]) *
                   static_cast<double>(centroids[static_cast<std::size_t>((first + i) * kDim + c)]);
          }
          const float keys = members[static_cast<std::size_t>(first + i)];
          const bool counts = keys > 0.0F && alive[static_cast<std::size_t>(row * count + i)] != 0;
          weight.push_back(counts ? std::exp(0.3 * dot) : 0.0);
          sum += static_cast<double>(keys) * weight.back();
        }
        for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += 0.5 * weight[i] / sum;
      }
      for (std::size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(scored.scores[static_cast<std::size_t>(row * scored.view.length_stride) + i],
                    expected[i], 2e-5 * expected[i] + 1e-7)
            << "row " << row << " cluster " << i;
      }
    }
  }
}

TEST(EmulatedScore, LogitSumAddsLogits) {
  std::mt19937 random(60);
  const PagedCache cache(random, DType::kF32, {50}, 16, 1, 8);
  const std::vector<float> q = random_floats(random, 3 * 8);
  const ScoreQueries queries{q.data(), 24, 3};
  Scored scored = make_scored(1, 3, 50, 1);
  score_exact(keys_of(cache), queries, 1.0F, scored.view, nullptr);
  group_scores(scored.view, cache.lengths.data(), 1, 1, 3, 50, GroupReduce::kLogitSum,
               scored.scores.data(), scored.totals.data(), nullptr);
  for (std::int64_t t = 0; t < 50; ++t) {
    double sum = 0.0;
    for (std::int64_t i = 0; i < 24; ++i) {
      sum +=
          q[static_cast<std::size_t>(i)] * cache.value(false, 0, 0, t, i % 8) * 1.4426950408889634;
    }
    ASSERT_NEAR(scored.scores[static_cast<std::size_t>(t)], sum, 1e-4);
  }
}

// A page's score bounds every logit in it, and the partly filled last page counts.
TEST(EmulatedScore, QuestBoundsEveryLogit) {
  std::mt19937 random(70);
  const std::int64_t dim = 20;
  const std::int64_t sub = 16;
  const PagedCache cache(random, DType::kF32, {1, 70, 128}, 64, 2, dim);
  std::vector<std::vector<float>> bounds(3);
  for (std::int64_t b = 0; b < 3; ++b) {
    const std::int64_t length = cache.lengths[static_cast<std::size_t>(b)];
    for (std::int64_t first = 0; first < length; first += sub) {
      for (std::int64_t head = 0; head < 2; ++head) {
        std::vector<float> low(static_cast<std::size_t>(dim), INFINITY);
        std::vector<float> high(static_cast<std::size_t>(dim), -INFINITY);
        for (std::int64_t c = 0; c < dim; ++c) {
          const auto at = static_cast<std::size_t>(c);
          for (std::int64_t t = first; t < std::min(length, first + sub); ++t) {
            const auto value = static_cast<float>(cache.value(false, b, head, t, c));
            low[at] = std::min(low[at], value);
            high[at] = std::max(high[at], value);
          }
        }
        std::vector<float>& to = bounds[static_cast<std::size_t>(b)];
        to.insert(to.end(), low.begin(), low.end());
        to.insert(to.end(), high.begin(), high.end());
      }
    }
  }
  // Layer 2 of sequences whose layers lie so many bytes apart.
  constexpr std::int64_t kLayerBytes = 48;
  std::vector<PageChoice> choices;
  for (const std::vector<float>& own : bounds) {
    choices.push_back(
        {.bounds = own.data() - 2 * kLayerBytes / sizeof(float), .layer_bytes = kLayerBytes});
  }
  const std::vector<float> q = random_floats(random, 3 * 4 * dim);
  const ScoreQueries queries{q.data(), 4 * dim, 4};
  std::vector<float> scores = poisoned(6 * 9);
  score_quest({.choices = choices.data(),
               .layer = 2,
               .lengths = cache.lengths.data(),
               .sequences = 3,
               .max_length = 128,
               .tokens = sub,
               .kv_heads = 2,
               .head_dim = dim},
              queries, scores.data(), 9, nullptr);
  for (std::int64_t row = 0; row < 6; ++row) {
    const std::int64_t b = row / 2;
    const std::int64_t length = cache.lengths[static_cast<std::size_t>(b)];
    for (std::int64_t page = 0; page < 9; ++page) {
      const float score = scores[static_cast<std::size_t>(row * 9 + page)];
      if (page * sub >= length) {
        EXPECT_TRUE(std::isnan(score)) << "written beyond the row";
        continue;
      }
      double best = -INFINITY;
      double expected = -INFINITY;
      for (std::int64_t g = 0; g < 2; ++g) {
        const float* head_q = q.data() + (b * 4 + (row % 2) * 2 + g) * dim;
        double bound = 0.0;
        for (std::int64_t c = 0; c < dim; ++c) {
          double low = INFINITY;
          double high = -INFINITY;
          for (std::int64_t t = page * sub; t < std::min(length, (page + 1) * sub); ++t) {
            low = std::min(low, cache.value(false, b, row % 2, t, c));
            high = std::max(high, cache.value(false, b, row % 2, t, c));
          }
          bound += std::max(head_q[c] * low, head_q[c] * high);
        }
        expected = std::max(expected, bound);
        for (std::int64_t t = page * sub; t < std::min(length, (page + 1) * sub); ++t) {
          double dot = 0.0;
          for (std::int64_t c = 0; c < dim; ++c)
            dot += head_q[c] * cache.value(false, b, row % 2, t, c);
          best = std::max(best, dot);
        }
      }
      EXPECT_NEAR(score, expected, 1e-4);
      EXPECT_GE(score, best - 1e-4);
    }
  }
}

}  // namespace
}  // namespace triphase::cuda
