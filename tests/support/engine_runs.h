#pragma once

// Requests for a TinyModel's Engine and their results, for tests that compare runs.

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "runtime/engine/engine.h"

namespace triphase {

inline Request request(std::uint64_t index, std::vector<TokenId> tokens, std::int64_t max_tokens) {
  Request result;
  result.index = index;
  result.prompt_form = PromptForm::kTokens;
  result.tokens = std::move(tokens);
  result.sampling.max_tokens = max_tokens;
  result.sampling.logprobs = 0;
  return result;
}

inline std::vector<TokenId> random_tokens(std::mt19937& random, std::size_t count) {
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 256);
  return tokens;
}

// Runs all requests to the end; results by index.
inline std::map<std::uint64_t, Completion> run_all(Engine& engine,
                                                   const std::vector<Request>& requests) {
  std::map<std::uint64_t, Completion> results;
  std::size_t next = 0;
  while (next < requests.size() || engine.in_flight() > 0) {
    while (next < requests.size() && engine.has_room()) engine.submit(requests[next++]);
    for (Completion& completion : engine.step()) {
      const std::uint64_t index = completion.index;
      EXPECT_TRUE(results.emplace(index, std::move(completion)).second) << "line twice";
    }
  }
  return results;
}

inline void expect_equal(const std::map<std::uint64_t, Completion>& a,
                         const std::map<std::uint64_t, Completion>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [index, left] : a) {
    const Completion& right = b.at(index);
    ASSERT_EQ(left.error.has_value(), right.error.has_value()) << "line " << index;
    ASSERT_EQ(left.tokens, right.tokens) << "line " << index;
    ASSERT_EQ(left.logprobs.size(), right.logprobs.size());
    for (std::size_t i = 0; i < left.logprobs.size(); ++i) {
      // Bit for bit: a log-probability sums over every logit of the row.
      ASSERT_EQ(left.logprobs[i].logprob, right.logprobs[i].logprob) << "line " << index;
    }
  }
}

// Preempted or not, a prompt's token is computed for the first time or shared, and nothing is drawn
// twice.
inline void expect_each_token_counted_once(const Engine& engine,
                                           const std::vector<Request>& requests) {
  std::uint64_t prompts = 0;
  for (const Request& request : requests) prompts += request.tokens.size();
  const EngineStats& stats = engine.stats();
  const PlacementStats& placement = engine.placement().stats();
  EXPECT_EQ(stats.computed_prompt_tokens + placement.shared_prompt_tokens, prompts);
  EXPECT_LE(stats.results_of_decoding + requests.size(), stats.generated_tokens);
  EXPECT_EQ(stats.recomputed_tokens > 0, placement.drops > 0);
}

inline std::vector<Request> mixed_requests(std::uint32_t seed, std::size_t count) {
  std::mt19937 random(seed);
  std::vector<Request> requests;
  const auto shared = random_tokens(random, 40);
  for (std::size_t i = 0; i < count; ++i) {
    auto tokens = random_tokens(random, 1 + random() % 60);
    if (i % 3 == 0) tokens.insert(tokens.begin(), shared.begin(), shared.begin() + random() % 41);
    requests.push_back(request(i, tokens, 1 + static_cast<std::int64_t>(random() % 20)));
    SamplingParams& sampling = requests.back().sampling;
    if (i % 2 == 1) sampling.temperature = 0.8;
    if (i % 4 == 1) sampling.top_k = 20;
    if (i % 4 == 3) sampling.top_p = 0.9;
    if (i % 5 == 4) sampling.repetition_penalty = 1.3;
    if (i % 7 == 5) sampling.seed = 11;
  }
  return requests;
}

}  // namespace triphase
