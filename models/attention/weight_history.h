#pragma once

// Sums of attention weights per token over the last rows of a sequence (ALISA's local attention
// sum). Weights are kept in steps of 2^-32, so that sums are exact: they do not depend on the order
// of additions, and a token whose rows have all left has a sum of exactly 0.

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace triphase {

class WeightHistory {
 public:
  // Exact: every row is kept. Otherwise rows are summed in buckets of an eighth of the window, and
  // the window holds up to an eighth more rows than asked for.
  explicit WeightHistory(bool exact) : exact_(exact) {}

  // The newest row: weights[i] of token tokens[i]; then drops rows beyond the last `window`.
  void add(std::span<const std::int32_t> tokens, std::span<const float> weights,
           std::int64_t window);

  // Sums of tokens [0, count).
  void scores(std::int64_t count, std::vector<float>& to) const;
  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::uint64_t bytes() const;

 private:
  struct Bucket {
    std::int64_t rows = 0;
    // Exact: tokens of the one row and their weights. Else weights of all tokens.
    std::vector<std::int32_t> tokens;
    std::vector<std::int64_t> weights;
  };

  bool exact_;
  std::int64_t rows_ = 0;
  std::deque<Bucket> buckets_;
  std::vector<std::int64_t> sums_;
};

}  // namespace triphase
