#include "runtime/engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

namespace triphase {
namespace {

std::vector<float> random_logits(std::size_t size, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 2.0F);
  std::vector<float> logits(size);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

TokenId greedy(const std::vector<float>& logits) {
  SamplerScratch scratch;
  return sample(logits, {}, {}, 0, 0, scratch).token;
}

TEST(Greedy, TakesTheLowestIdOfATie) {
  for (const std::size_t size : {1u, 2u, 15u, 16u, 17u, 100u}) {
    std::vector<float> logits(size, -3.0F);
    EXPECT_EQ(greedy(logits), 0);
    logits[size - 1] = 1.0F;
    logits[size / 2] = 1.0F;
    EXPECT_EQ(greedy(logits), static_cast<TokenId>(size / 2));
  }
}

TEST(Sample, ReportsNanAndInf) {
  SamplerScratch scratch;
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{20}, std::size_t{36}}) {
      auto logits = random_logits(37, 1);
      logits[at] = bad;
      EXPECT_FALSE(sample(logits, {}, {}, 0, 0, scratch).finite);
    }
  }
}

TEST(Sample, HugeLogitsDoNotOverflow) {
  SamplerScratch scratch;
  const std::vector<float> logits = {-6e4F, 6e4F, 0.0F};
  SamplingParams params{.temperature = 0.5};
  params.logprobs = 1;
  const Sampled sampled = sample(logits, params, {}, 1, 1, scratch);
  EXPECT_EQ(sampled.token, 1);
  EXPECT_NEAR(sampled.logprob->logprob, 0.0F, 1e-6F);
}

// The share of draws per token must follow the exact distribution (5 sigma).
void expect_distribution(const std::vector<float>& logits, const SamplingParams& params,
                         const std::map<TokenId, double>& expected) {
  SamplerScratch scratch;
  constexpr int kDraws = 20'000;
  std::map<TokenId, int> counts;
  for (int i = 0; i < kDraws; ++i) {
    ++counts[sample(logits, params, {}, 77, static_cast<std::uint64_t>(i), scratch).token];
  }
  for (const auto& [token, count] : counts) {
    ASSERT_TRUE(expected.contains(token)) << token << " has no probability";
    const double p = expected.at(token);
    EXPECT_NEAR(static_cast<double>(count) / kDraws, p, 5 * std::sqrt(p * (1 - p) / kDraws) + 1e-9);
  }
  double sum = 0.0;
  for (const auto& [token, p] : expected) sum += p;
  EXPECT_NEAR(sum, 1.0, 1e-9);
}

TEST(Sample, FollowsTemperatureTopKTopPAndMinP) {
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

TEST(Sample, TopPOfALargeVocabularyEqualsAFullSort) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    const auto logits = random_logits(5'000, seed);
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
    SamplerScratch scratch;
    for (std::uint64_t draw = 0; draw < 200; ++draw) {
      EXPECT_TRUE(allowed.contains(
          sample(logits, {.temperature = 1.0, .top_p = 0.9}, {}, seed, draw, scratch).token));
    }
  }
}

TEST(Sample, RepetitionPenaltyActsOncePerToken) {
  SamplerScratch scratch;
  const std::vector<float> logits = {2.0F, 1.5F, -1.0F};
  SamplingParams params;
  params.repetition_penalty = 1.2;
  const std::vector<TokenId> often = {0, 0, 0, 0};
  EXPECT_EQ(sample(logits, params, often, 0, 0, scratch).token, 0) << "2 / 1.2 > 1.5";
  params.repetition_penalty = 1.5;
  EXPECT_EQ(sample(logits, params, often, 0, 0, scratch).token, 1);
}

TEST(Sample, LogprobsAreOfTheUnmodifiedDistribution) {
  SamplerScratch scratch;
  const std::vector<float> logits = {std::log(2.0F), std::log(5.0F), std::log(3.0F)};
  SamplingParams params{.temperature = 2.0, .top_k = 1, .logprobs = 2};
  const Sampled sampled = sample(logits, params, {}, 3, 0, scratch);
  EXPECT_EQ(sampled.token, 1);
  ASSERT_TRUE(sampled.logprob);
  EXPECT_NEAR(sampled.logprob->logprob, std::log(0.5), 1e-6);
  ASSERT_EQ(sampled.logprob->top.size(), 2u);
  EXPECT_EQ(sampled.logprob->top[1].first, 2);
  EXPECT_NEAR(sampled.logprob->top[1].second, std::log(0.3), 1e-6);
}

TEST(UniformDraw, IsPhilox) {
  // Known answer of Philox-4x32-10 for key 0, counter 0: first words 6627e8d5 e169c58d.
  const std::uint64_t bits = (std::uint64_t{0x6627e8d5} << 32 | 0xe169c58d) >> 11;
  EXPECT_EQ(uniform_draw(0, 0), static_cast<double>(bits) * 0x1p-53);
}

TEST(LineKey, OwnSeedIgnoresTheIndexAndTheJob) {
  SamplingParams own;
  own.seed = 5;
  EXPECT_EQ(line_key(own, 1, 2), line_key(own, 3, 4));
  EXPECT_NE(line_key({}, 1, 2), line_key({}, 1, 3));
  EXPECT_NE(line_key({}, 1, 2), line_key({}, 2, 2));
}

}  // namespace
}  // namespace triphase
