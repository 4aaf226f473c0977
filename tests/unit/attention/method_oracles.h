#pragma once

// Float64 oracles of the attention methods, written from the papers' equations and independent of
// models/attention: each gets all softmax weights of a sequence's dense rows or the keys
// themselves, and says which tokens a decode step attends and what its output is.

#include <cstdint>
#include <functional>
#include <vector>

namespace triphase::oracle {

// One sequence in one layer as float64: q [token][head][dim], k and v [token][kv_head][dim].
struct Sequence {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t dim = 0;
  std::int64_t prompt = 0;
  double scale = 1;
  std::vector<std::vector<std::vector<double>>> q, k, v;

  [[nodiscard]] std::int64_t group() const { return heads / kv_heads; }
  // softmax of head's row at position `at` over `tokens` (ascending).
  [[nodiscard]] std::vector<double> weights(std::int64_t head, std::int64_t at,
                                            const std::vector<std::int32_t>& tokens) const;
};

using Tokens = std::vector<std::int32_t>;
struct Step {
  std::vector<Tokens> lists;             // one per KV head, or one
  std::vector<std::vector<double>> out;  // [head][dim]
};

[[nodiscard]] Tokens range(std::int64_t begin, std::int64_t end);
// Exact attention of every head over its list, no reallocation.
[[nodiscard]] Step attend(const Sequence& s, std::int64_t at, std::vector<Tokens> lists);

// Decode steps at positions prompt .. last, in order.
[[nodiscard]] std::vector<Step> local(const Sequence& s, double keep);
[[nodiscard]] std::vector<Step> lm_infinite(const Sequence& s, std::int64_t sinks, std::int64_t k);
[[nodiscard]] std::vector<Step> strided(const Sequence& s, double keep, bool local = true);
[[nodiscard]] std::vector<Step> swa(const Sequence& s, double caching_ratio,
                                    bool paper_split = false);
[[nodiscard]] std::vector<Step> h2o(const Sequence& s, std::int64_t k, double local);
[[nodiscard]] std::vector<Step> sparq(const Sequence& s, std::int64_t rank, std::int64_t k,
                                      double local, bool reallocate);
[[nodiscard]] std::vector<Step> topk(const Sequence& s, std::int64_t k);
[[nodiscard]] std::vector<Step> quest(const Sequence& s, std::int64_t pages, std::int64_t page);
[[nodiscard]] std::vector<Step> random(const Sequence& s, double keep);

}  // namespace triphase::oracle
