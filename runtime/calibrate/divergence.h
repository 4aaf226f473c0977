#pragma once

// How far the next-token distributions of one attention method are from those of another, over the
// same tokens.

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/calibrate/sparsity_choice.h"
#include "runtime/engine/engine.h"

namespace triphase {

// KL(p || q) in nats of the softmax of two rows of logits, in float64; not negative. NaN where a
// logit is not finite.
[[nodiscard]] double kl_divergence(std::span<const float> p, std::span<const float> q);

// The reference's logits for every scored token of some tasks.
// Memory: scored tokens * vocabulary * 4 bytes.
class LogitsReference {
 public:
  // `tasks` as they will be scored, in this order, by Engine::run_all().
  LogitsReference(std::span<const ScoreTask> tasks, std::int64_t vocabulary);

  // For Engine::set_row_observer(). Thread safe for different rows.
  void keep(const ScoredRow& row);

 private:
  friend class LogitsComparison;
  [[nodiscard]] std::size_t row_index(const ScoredRow& row) const;

  std::size_t vocabulary_;
  std::vector<std::size_t> first_row_;  // of each task, and the end
  std::vector<float> logits_;           // [row][vocabulary]
};

// What one other method's logits are beside the reference, which must outlive it.
class LogitsComparison {
 public:
  explicit LogitsComparison(const LogitsReference& reference);

  // For Engine::set_row_observer(). Thread safe for different rows.
  void add(const ScoredRow& row);
  // Once every row was added.
  [[nodiscard]] Divergence divergence() const;

 private:
  const LogitsReference& reference_;
  std::vector<double> kl_;  // of each row
  std::vector<std::uint8_t> agrees_;
};

}  // namespace triphase
