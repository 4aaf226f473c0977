#pragma once

// What Ops::sample is asked for each row of logits, and what it answers. Plain values.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "base/ids.h"

namespace triphase {

inline constexpr int kMaxAlternatives = 20;

// One row of logits: a token to draw, or the score of a given one.
struct SampleRow {
  std::int64_t vocab = 0;    // leading ids that take part, at least 1
  double temperature = 0.0;  // below 1e-5: the largest logit wins
  std::int64_t top_k = 0;    // 0: all
  double top_p = 1.0;        // (0, 1]
  double min_p = 0.0;        // [0, 1]: none with less than min_p times the largest probability
  double repetition_penalty = 1.0;   // of the tokens in `history`; above 0
  std::span<const TokenId> history;  // host memory, read before the call returns
  std::uint64_t key = 0;             // a draw depends on (key, position) alone
  std::uint64_t position = 0;
  int alternatives = -1;     // so many likeliest tokens; -1: not even the drawn token's probability
  TokenId score_token = -1;  // not -1: its score is wanted, and what stands above is not looked at
};

// Log-probabilities come as the numbers that they are made of.
struct SampleResult {
  TokenId token = 0;   // the drawn one; of a scored row the likeliest. Ties go to the lower id
  bool finite = true;  // false: a logit is NaN or infinite, and nothing else is set
  // Of the unmodified logits, set where a log-probability or a score is wanted:
  float logit = 0.0F;      // the drawn token's, or score_token's
  float peak = 0.0F;       // the largest
  double exp_sum = 0.0;    // sum of exp(logit - peak)
  std::int32_t count = 0;  // likeliest tokens, best first
  TokenId ids[kMaxAlternatives];
  float logits[kMaxAlternatives];
};

// Natural logarithm of the probability of a token with `logit`.
[[nodiscard]] inline float log_probability(const SampleResult& result, float logit) {
  const double log_sum = static_cast<double>(result.peak) + std::log(result.exp_sum);
  return static_cast<float>(static_cast<double>(logit) - log_sum);
}

// Natural logarithm of score_token's probability, computed in F64.
[[nodiscard]] inline double score_of(const SampleResult& result) {
  const double below = static_cast<double>(result.logit) - static_cast<double>(result.peak);
  // -0.0 would be printed as such.
  return std::min(below - std::log(result.exp_sum), 0.0) + 0.0;
}

}  // namespace triphase
