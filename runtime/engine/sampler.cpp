#include "runtime/engine/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace triphase {
namespace {

constexpr double kGreedyBelow = 1e-5;  // temperatures under this are greedy (bad-inputs N7)
constexpr std::size_t kLanes = 16;     // independent chains, so that the compiler can use vectors

bool all_finite(std::span<const float> values) {
  std::array<float, kLanes> sums{};
  std::size_t i = 0;
  // x * 0 is 0 for finite x and NaN otherwise; NaN survives the sum.
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += values[i + lane] * 0.0F;
  }
  float sum = 0.0F;
  for (; i < values.size(); ++i) sum += values[i] * 0.0F;
  for (const float lane : sums) sum += lane;
  return sum == 0.0F;
}

float maximum(std::span<const float> values) {
  std::array<float, kLanes> best;
  best.fill(values[0]);
  std::size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      best[lane] = values[i + lane] > best[lane] ? values[i + lane] : best[lane];
    }
  }
  float result = *std::ranges::max_element(best);
  for (; i < values.size(); ++i) result = std::max(result, values[i]);
  return result;
}

TokenId argmax(std::span<const float> values) {
  const float best = maximum(values);
  return static_cast<TokenId>(std::ranges::find(values, best) - values.begin());
}

// Log-probabilities of the unmodified distribution.
TokenLogprob logprob_of(std::span<const float> logits, TokenId token, std::int64_t alternatives) {
  const double best = maximum(logits);
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - best);
  const double log_sum = best + std::log(sum);
  const auto of = [&](TokenId id) {
    return static_cast<float>(static_cast<double>(logits[static_cast<std::size_t>(id)]) - log_sum);
  };
  TokenLogprob result{.token = token, .logprob = of(token), .top = {}};
  if (alternatives > 0) {
    std::vector<TokenId> ids(logits.size());
    for (std::size_t id = 0; id < ids.size(); ++id) ids[id] = static_cast<TokenId>(id);
    const auto count = std::min(static_cast<std::size_t>(alternatives), ids.size());
    std::ranges::partial_sort(ids, ids.begin() + static_cast<std::ptrdiff_t>(count),
                              [&logits](TokenId a, TokenId b) {
                                const float la = logits[static_cast<std::size_t>(a)];
                                const float lb = logits[static_cast<std::size_t>(b)];
                                return la > lb || (la == lb && a < b);
                              });
    for (std::size_t i = 0; i < count; ++i) result.top.emplace_back(ids[i], of(ids[i]));
  }
  return result;
}

void penalize_repetition(std::span<float> logits, std::span<const TokenId> history,
                         double penalty) {
  // Each token once however often it occurred: mark by a sorted copy of the history.
  std::vector<TokenId> seen(history.begin(), history.end());
  std::ranges::sort(seen);
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  for (const TokenId id : seen) {
    if (id < 0 || static_cast<std::size_t>(id) >= logits.size()) continue;
    float& logit = logits[static_cast<std::size_t>(id)];
    logit = static_cast<float>(logit > 0.0F ? logit / penalty : logit * penalty);
  }
}

bool better(const std::pair<double, TokenId>& a, const std::pair<double, TokenId>& b) {
  return a.first > b.first || (a.first == b.first && a.second < b.second);
}

// Keeps the best candidates until their weights reach `mass`, and of those the ones with at least
// min_p times the best weight. Sorts only as much of a large vocabulary as it takes.
void keep_likeliest(double mass, double min_p,
                    std::vector<std::pair<double, TokenId>>& candidates) {
  std::size_t sorted = 0;
  std::size_t kept = 0;
  double sum = 0.0;
  while (kept < candidates.size() && (kept == 0 || sum < mass)) {
    if (kept == sorted) {
      const std::size_t end = std::min(candidates.size(), std::max<std::size_t>(128, sorted * 8));
      std::partial_sort(candidates.begin() + static_cast<std::ptrdiff_t>(sorted),
                        candidates.begin() + static_cast<std::ptrdiff_t>(end), candidates.end(),
                        better);
      sorted = end;
    }
    if (kept > 0 && candidates[kept].first < min_p * candidates.front().first) break;
    sum += candidates[kept++].first;
  }
  candidates.resize(kept);
}

TokenId draw(std::span<const float> logits, const SamplingParams& params, double uniform,
             std::vector<std::pair<double, TokenId>>& candidates) {
  const double best = maximum(logits);
  candidates.clear();
  for (std::size_t id = 0; id < logits.size(); ++id) {
    candidates.emplace_back(std::exp((static_cast<double>(logits[id]) - best) / params.temperature),
                            static_cast<TokenId>(id));
  }
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < candidates.size()) {
    const auto end = candidates.begin() + params.top_k;
    std::nth_element(candidates.begin(), end, candidates.end(), better);
    candidates.erase(end, candidates.end());
  }
  if (params.top_p < 1.0 || params.min_p > 0.0) {
    double total = 0.0;
    for (const auto& [weight, id] : candidates) total += weight;
    keep_likeliest(params.top_p * total, params.min_p, candidates);
  }
  double total = 0.0;
  for (const auto& [weight, id] : candidates) total += weight;
  double left = uniform * total;
  for (const auto& [weight, id] : candidates) {
    left -= weight;
    if (left < 0.0) return id;
  }
  // Rounding can leave a crumb: the last token with any weight takes it.
  for (std::size_t i = candidates.size(); i-- > 0;) {
    if (candidates[i].first > 0.0) return candidates[i].second;
  }
  return candidates.front().second;
}

std::uint64_t mix(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15ULL;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

}  // namespace

std::uint64_t line_key(const SamplingParams& params, std::uint64_t job_seed, std::uint64_t index) {
  // Different constants keep a line's own seed 5 apart from job seed 5.
  return params.seed ? mix(*params.seed ^ 0x6C696E65ULL) : mix(mix(job_seed ^ 0x6A6F62ULL) + index);
}

double uniform_draw(std::uint64_t key, std::uint64_t position) {
  std::array<std::uint32_t, 4> counter = {static_cast<std::uint32_t>(position),
                                          static_cast<std::uint32_t>(position >> 32), 0, 0};
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key0,
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key1,
               static_cast<std::uint32_t>(product0)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  const std::uint64_t bits = (std::uint64_t{counter[0]} << 32 | counter[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

Sampled sample(std::span<const float> logits, const SamplingParams& params,
               std::span<const TokenId> history, std::uint64_t key, std::uint64_t position,
               SamplerScratch& scratch) {
  Sampled result;
  result.finite = all_finite(logits);
  if (!result.finite) return result;
  std::span<const float> used = logits;
  if (params.repetition_penalty != 1.0) {
    scratch.logits.assign(logits.begin(), logits.end());
    penalize_repetition(scratch.logits, history, params.repetition_penalty);
    used = scratch.logits;
  }
  result.token = params.temperature < kGreedyBelow
                     ? argmax(used)
                     : draw(used, params, uniform_draw(key, position), scratch.candidates);
  if (params.logprobs >= 0) result.logprob = logprob_of(logits, result.token, params.logprobs);
  return result;
}

bool score_token(std::span<const float> logits, TokenId token, TokenScore& score) {
  float best = -INFINITY;
  bool finite = true;
  std::size_t best_id = 0;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    finite = finite && std::isfinite(logits[id]);
    if (logits[id] > best) {
      best = logits[id];
      best_id = id;
    }
  }
  if (!finite) return false;
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - best);
  const double logit = static_cast<double>(logits[static_cast<std::size_t>(token)]);
  // -0.0 would be printed as such.
  score.logprob = std::min(logit - best - std::log(sum), 0.0) + 0.0;
  score.best = static_cast<TokenId>(best_id);
  return true;
}

}  // namespace triphase
