// Ops::sample on the CPU, and the arithmetic that it shares with a GPU.

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "kernels/sample_math.h"
#include "kernels/sizing/sample_workspace.h"
#include "tests/unit/kernels/kernel_test.h"

namespace triphase {
namespace {

class SampleTest : public KernelTest {
 protected:
  // All rows of one length.
  [[nodiscard]] std::vector<SampleResult> sample(const std::vector<std::vector<float>>& logits,
                                                 std::vector<SampleRow> rows) {
    const auto cols = static_cast<std::int64_t>(logits[0].size());
    std::vector<float> values;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      values.insert(values.end(), logits[r].begin(), logits[r].end());
      if (rows[r].vocab == 0) rows[r].vocab = cols;
    }
    const std::size_t bytes = sample_workspace_bytes({.threads = 2}, cols);
    std::vector<std::byte> memory(bytes + 64);
    const auto start = reinterpret_cast<std::uintptr_t>(memory.data());
    std::vector<SampleResult> results(rows.size());
    ops_->sample({values.data(), DType::kF32, static_cast<std::int64_t>(rows.size()), cols, cols},
                 rows, results.data(), {memory.data() + (64 - start % 64) % 64, bytes}, *stream_);
    return results;
  }
  [[nodiscard]] SampleResult one(const std::vector<float>& logits, const SampleRow& row = {}) {
    return sample({logits}, {row})[0];
  }
  [[nodiscard]] std::vector<float> random_logits(std::size_t size) {
    std::normal_distribution<float> normal(0.0F, 2.0F);
    std::vector<float> logits(size);
    for (float& logit : logits) logit = normal(random_);
    return logits;
  }
  // The share of draws per token must follow the exact distribution (5 sigma).
  void expect_distribution(const std::vector<float>& logits, SampleRow row,
                           const std::map<TokenId, double>& expected) {
    constexpr int kDraws = 20'000;
    std::vector<SampleRow> rows;
    row.key = 77;
    for (int i = 0; i < kDraws; ++i) {
      row.position = static_cast<std::uint64_t>(i);
      rows.push_back(row);
    }
    std::map<TokenId, int> counts;
    for (const SampleResult& result :
         sample(std::vector<std::vector<float>>(kDraws, logits), rows)) {
      ++counts[result.token];
    }
    for (const auto& [token, count] : counts) {
      ASSERT_TRUE(expected.contains(token)) << token << " has no probability";
      const double p = expected.at(token);
      EXPECT_NEAR(static_cast<double>(count) / kDraws, p,
                  5 * std::sqrt(p * (1 - p) / kDraws) + 1e-9);
    }
    double sum = 0.0;
    for (const auto& [token, p] : expected) sum += p;
    EXPECT_NEAR(sum, 1.0, 1e-9);
  }
};
TRIPHASE_KERNEL_TARGETS(SampleTest);

TEST_P(SampleTest, GreedyTakesTheLowestIdOfATie) {
  for (const std::size_t size : {1U, 2U, 15U, 16U, 17U, 100U}) {
    std::vector<float> logits(size, -3.0F);
    EXPECT_EQ(one(logits).token, 0);
    logits[size - 1] = 1.0F;
    logits[size / 2] = 1.0F;
    EXPECT_EQ(one(logits).token, static_cast<TokenId>(size / 2));
  }
}

TEST_P(SampleTest, ReportsNanAndInf) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{20}, std::size_t{36}}) {
      auto logits = random_logits(37);
      logits[at] = bad;
      EXPECT_FALSE(one(logits).finite);
      EXPECT_FALSE(one(logits, {.score_token = 1}).finite);
      // Beyond the ids that take part nothing is looked at.
      EXPECT_EQ(one(logits, {.vocab = 20}).finite, at != 0);
    }
  }
}

TEST_P(SampleTest, HugeLogitsDoNotOverflow) {
  const std::vector<float> logits = {-6e4F, 6e4F, 0.0F};
  const SampleResult result =
      one(logits, {.temperature = 0.5, .key = 1, .position = 1, .alternatives = 1});
  EXPECT_EQ(result.token, 1);
  EXPECT_NEAR(log_probability(result, result.logit), 0.0F, 1e-6F);
}

TEST_P(SampleTest, FollowsTemperatureTopKTopPAndMinP) {
  // Probabilities 0.5, 0.25, 0.125, 0.125 at temperature 1.
  const std::vector<float> logits = {std::log(2.0F), std::log(4.0F), std::log(1.0F),
                                     std::log(1.0F)};
  expect_distribution(logits, {.temperature = 1.0}, {{0, 0.25}, {1, 0.5}, {2, 0.125}, {3, 0.125}});
  expect_distribution(logits, {.temperature = 0.5},
                      {{0, 4.0 / 22}, {1, 16.0 / 22}, {2, 1.0 / 22}, {3, 1.0 / 22}});
  expect_distribution(logits, {.temperature = 1.0, .top_k = 2}, {{0, 1.0 / 3}, {1, 2.0 / 3}});
  expect_distribution(logits, {.temperature = 1.0, .top_p = 0.7}, {{0, 1.0 / 3}, {1, 2.0 / 3}});
  expect_distribution(logits, {.temperature = 1.0, .top_p = 0.8},
                      {{0, 2.0 / 7}, {1, 4.0 / 7}, {2, 1.0 / 7}});
  expect_distribution(logits, {.temperature = 1.0, .min_p = 0.4}, {{0, 1.0 / 3}, {1, 2.0 / 3}});
  expect_distribution(logits, {.temperature = 1.0, .top_p = 1e-9}, {{1, 1.0}});
}

TEST_P(SampleTest, TopPOfALargeVocabularyEqualsAFullSort) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto logits = random_logits(5'000);
    std::vector<std::pair<double, TokenId>> sorted;
    double total = 0.0;
    for (std::size_t id = 0; id < logits.size(); ++id) {
      sorted.emplace_back(-std::exp(static_cast<double>(logits[id])), static_cast<TokenId>(id));
      total -= sorted.back().first;
    }
    std::ranges::sort(sorted);
    std::set<TokenId> allowed;
    double mass = 0.0;
    for (const auto& [weight, id] : sorted) {
      if (mass >= 0.9 * total) break;
      mass -= weight;
      allowed.insert(id);
    }
    std::vector<SampleRow> rows;
    for (std::uint64_t draw = 0; draw < 50; ++draw) {
      rows.push_back({.temperature = 1.0, .top_p = 0.9, .key = seed, .position = draw});
    }
    for (const SampleResult& result : sample(std::vector<std::vector<float>>(50, logits), rows)) {
      EXPECT_TRUE(allowed.contains(result.token));
    }
  }
}

TEST_P(SampleTest, RepetitionPenaltyActsOncePerToken) {
  const std::vector<float> logits = {2.0F, 1.5F, -1.0F};
  const std::vector<TokenId> often = {0, 0, 0, 0, -1, 3};
  EXPECT_EQ(one(logits, {.repetition_penalty = 1.2, .history = often}).token, 0) << "2 / 1.2 > 1.5";
  EXPECT_EQ(one(logits, {.repetition_penalty = 1.5, .history = often}).token, 1);
}

TEST_P(SampleTest, RepetitionPenaltyLowersNegativeLogitsToo) {
  const std::vector<float> logits = {-1.0F, -1.5F, -4.0F};
  const std::vector<TokenId> first = {0};
  EXPECT_EQ(one(logits, {.repetition_penalty = 1.4, .history = first}).token, 0);
  EXPECT_EQ(one(logits, {.repetition_penalty = 1.6, .history = first}).token, 1);
  EXPECT_EQ(one(logits, {.repetition_penalty = 0.5, .history = std::vector<TokenId>{2}}).token, 0)
      << "below 1 it raises: -4 becomes -2";
  EXPECT_EQ(one(logits, {.repetition_penalty = 0.2, .history = std::vector<TokenId>{2}}).token, 2);
}

// Equal logits have a weight of 1 each, so that every sum is exact: the token that reaches the mass
// is the last one, and min_p keeps what just has it.
TEST_P(SampleTest, TopPAtTheExactMassTakesNoTokenMore) {
  const std::vector<float> logits(8, 0.5F);
  for (const int kept : {1, 2, 5, 8}) {
    std::map<TokenId, double> expected;
    for (int id = 0; id < kept; ++id) expected[id] = 1.0 / kept;
    expect_distribution(logits, {.temperature = 1.0, .top_p = kept / 8.0}, expected);
  }
  std::map<TokenId, double> all;
  for (int id = 0; id < 8; ++id) all[id] = 1.0 / 8;
  expect_distribution(logits, {.temperature = 1.0, .min_p = 1.0}, all);
}

TEST_P(SampleTest, LogprobsAreOfTheUnmodifiedDistribution) {
  const std::vector<float> logits = {std::log(2.0F), std::log(5.0F), std::log(3.0F)};
  const std::vector<TokenId> history = {1};
  const SampleResult result = one(logits, {.temperature = 2.0,
                                           .top_k = 1,
                                           .repetition_penalty = 1.1,
                                           .history = history,
                                           .key = 3,
                                           .alternatives = 2});
  EXPECT_EQ(result.token, 1);
  EXPECT_NEAR(log_probability(result, result.logit), std::log(0.5), 1e-6);
  ASSERT_EQ(result.count, 2);
  EXPECT_EQ(result.ids[1], 2);
  EXPECT_NEAR(log_probability(result, result.logits[1]), std::log(0.3), 1e-6);
}

TEST_P(SampleTest, AlternativesAreSortedWithTiesToTheLowerId) {
  for (const std::size_t size : {1U, 19U, 20U, 21U, 500U}) {
    auto logits = random_logits(size);
    for (float& logit : logits) logit = std::round(logit);
    std::vector<TokenId> ids(size);
    for (std::size_t id = 0; id < size; ++id) ids[id] = static_cast<TokenId>(id);
    std::ranges::stable_sort(ids, [&](TokenId a, TokenId b) {
      return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
    });
    const SampleResult result = one(logits, {.alternatives = 20});
    ASSERT_EQ(result.count, static_cast<std::int32_t>(std::min<std::size_t>(20, size)));
    for (std::int32_t i = 0; i < result.count; ++i) {
      EXPECT_EQ(result.ids[i], ids[static_cast<std::size_t>(i)]);
      EXPECT_EQ(result.logits[i], logits[static_cast<std::size_t>(result.ids[i])]);
    }
  }
}

TEST_P(SampleTest, ScoreIsTheLogSoftmaxAndTiesGoToTheLowerId) {
  const std::vector<float> logits = {1.0F, 3.0F, 3.0F, -2.0F};
  const double sum = std::exp(1.0) + 2.0 * std::exp(3.0) + std::exp(-2.0);
  for (TokenId token = 0; token < 4; ++token) {
    const SampleResult result = one(logits, {.score_token = token});
    EXPECT_NEAR(score_of(result),
                static_cast<double>(logits[static_cast<std::size_t>(token)]) - std::log(sum),
                1e-15);
    EXPECT_EQ(result.token, 1);
  }
  const SampleResult sure = one({5e4F, -5e4F}, {.score_token = 0});
  EXPECT_EQ(score_of(sure), 0.0);
  EXPECT_FALSE(std::signbit(score_of(sure)));
  EXPECT_EQ(score_of(one({5e4F, -5e4F}, {.score_token = 1})), -1e5);
}

TEST_P(SampleTest, WrongCallsAreRefused) {
  const std::vector<float> logits = {1.0F, 2.0F};
  EXPECT_THROW((void)one(logits, {.vocab = 3}), Error);
  EXPECT_THROW((void)one(logits, {.score_token = 2}), Error);
  EXPECT_THROW((void)one(logits, {.alternatives = 21}), Error);
}

std::uint64_t digest(std::uint64_t so_far, std::uint64_t value) {
  return (so_far ^ value) * 0x100000001B3ULL;
}
constexpr std::uint64_t kDigestStart = 0xCBF29CE484222325ULL;

// Rows whose logits and parameters are made with whole numbers alone: the same tokens on every
// processor and from every compiler.
TEST_P(SampleTest, DrawsAreThoseOfEarlierBuilds) {
  std::mt19937 random(11);
  constexpr std::array<double, 4> kTemperatures = {0.2, 0.7, 1.0, 3.0};
  std::uint64_t tokens = kDigestStart;
  for (std::size_t i = 0; i < 240; ++i) {
    SampleRow row;
    std::vector<float> logits(1 + random() % (i % 4 == 0 ? 40 : 3000));
    for (float& logit : logits) {
      logit = static_cast<float>(random() % 200000) * 0x1p-14F - 4.0F;
    }
    std::vector<TokenId> history;
    for (int seen = 0; seen < 20; ++seen) {
      history.push_back(static_cast<TokenId>(random() % (logits.size() + 2)));
    }
    row.history = history;
    row.temperature = kTemperatures[random() % 4];
    if (random() % 2 == 0) row.top_k = 1 + random() % 50;
    if (random() % 2 == 0) row.top_p = 0.6 + 0.1 * static_cast<double>(random() % 4);
    if (random() % 4 == 0) row.min_p = 0.02;
    if (random() % 3 == 0) row.repetition_penalty = 1.25;
    row.key = random();
    row.position = random();
    tokens = digest(tokens, static_cast<std::uint64_t>(one(logits, row).token));
  }
  EXPECT_EQ(tokens, 0x6046C52FE888069AULL);
}

TEST(SampleMath, ExpIsWithinALittleMoreThanHalfAUnit) {
  std::mt19937_64 random(5);
  for (const double most : {1e-3, 1.0, 40.0, 700.0, 745.0}) {
    for (int i = 0; i < 20'000; ++i) {
      const double x = -most * static_cast<double>(random() >> 11) * 0x1p-53;
      const double value = sampling::exp_at_most_one(x);
      const double unit = std::nextafter(value, 2.0) - value;
      const auto error =
          std::abs(static_cast<long double>(value) - std::exp(static_cast<long double>(x)));
      ASSERT_LE(error, 0.52L * static_cast<long double>(unit)) << x;
    }
  }
  EXPECT_EQ(sampling::exp_at_most_one(0.0), 1.0);
  EXPECT_EQ(sampling::exp_at_most_one(-746.0), 0.0);
  EXPECT_EQ(sampling::exp_at_most_one(-INFINITY), 0.0);
  EXPECT_EQ(sampling::exp_at_most_one(NAN), 0.0);
}

// Every build and every device must have these bits.
TEST(SampleMath, ExpNeverChanges) {
  std::uint64_t bits = kDigestStart;
  for (int i = 0; i < 10'000; ++i) {
    bits = digest(bits, sampling::bits_of(sampling::exp_at_most_one(-i * 0x1.9p-4)));
  }
  EXPECT_EQ(bits, 0x436006697DCA3D9CULL);
}

TEST(SampleMath, UniformDrawIsPhilox) {
  // Known answer of Philox-4x32-10 for key 0, counter 0: first words 6627e8d5 e169c58d.
  const std::uint64_t bits = (std::uint64_t{0x6627e8d5} << 32 | 0xe169c58d) >> 11;
  EXPECT_EQ(sampling::uniform_draw(0, 0), static_cast<double>(bits) * 0x1p-53);
}

TEST(SampleMath, ScaledDownIsTheExactProduct) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 10'000; ++i) {
    const std::uint64_t a = random() >> (1 + random() % 60);
    const std::uint64_t bits = random() >> (11 + random() % 50);

    const long double exact = static_cast<long double>(a) * 0x1p-53L * bits;
    const auto result = static_cast<long double>(sampling::scaled_down(a, bits));
    ASSERT_LE(result, exact * (1 + 0x1p-62L));
    ASSERT_GT(result + 1.0L, exact * (1 - 0x1p-62L));
  }
  constexpr std::uint64_t kMost = (std::uint64_t{1} << 53) - 1;
  EXPECT_EQ(sampling::scaled_down(std::uint64_t{1} << 62, kMost),
            (std::uint64_t{1} << 62) - (std::uint64_t{1} << 9));
  EXPECT_EQ(sampling::scaled_down(1000, 0), 0U);
}

TEST(SampleMath, KeysOrderLogits) {
  const std::vector<float> ascending = {
      -std::numeric_limits<float>::max(), -1.0F, -1e-45F, 0.0F, 1e-45F, 1.0F,
      std::numeric_limits<float>::max()};
  for (std::size_t i = 0; i + 1 < ascending.size(); ++i) {
    EXPECT_LT(sampling::order_key(ascending[i]), sampling::order_key(ascending[i + 1]));
    EXPECT_EQ(sampling::logit_of_key(sampling::order_key(ascending[i])), ascending[i]);
  }
  EXPECT_EQ(sampling::order_key(-0.0F), sampling::order_key(0.0F));
}

}  // namespace
}  // namespace triphase
