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

// The logits of every scored token of some tasks by a reference, and how far another method's are
// from them. Memory: scored tokens * vocabulary * 4 bytes.
class LogitsComparison {
 public:
  // `tasks` as they will be scored, in this order, by Engine::run_all().
  LogitsComparison(std::span<const ScoreTask> tasks, std::int64_t vocabulary);

  // For Engine::set_row_observer(): the reference's rows, then every row of one method after the
  // other. Thread safe for different rows.
  void keep(const ScoredRow& row);
  void compare(const ScoredRow& row);
  // Of the method whose rows were compared last.
  [[nodiscard]] Divergence divergence() const;

 private:
  [[nodiscard]] std::size_t row_index(const ScoredRow& row) const;

  std::size_t vocabulary_;
  std::vector<std::size_t> first_row_;  // of each task, and the end
  std::vector<float> logits_;           // [row][vocabulary]
  std::vector<double> kl_;              // of each row
  std::vector<std::uint8_t> agrees_;
};

}  // namespace triphase
