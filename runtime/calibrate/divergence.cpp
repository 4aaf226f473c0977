#include "runtime/calibrate/divergence.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/samples.h"

namespace triphase {
namespace {

// log of the sum of exponentials.
double log_sum(std::span<const float> logits) {
  const double highest = *std::ranges::max_element(logits);
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - highest);
  return highest + std::log(sum);
}

std::size_t best(std::span<const float> logits) {
  return static_cast<std::size_t>(std::ranges::max_element(logits) - logits.begin());
}

}  // namespace

double kl_divergence(std::span<const float> p, std::span<const float> q) {
  TRIPHASE_CHECK(p.size() == q.size() && !p.empty(), "distributions over one vocabulary");
  const double p_log_sum = log_sum(p);
  const double q_log_sum = log_sum(q);
  double sum = 0.0;
  for (std::size_t id = 0; id < p.size(); ++id) {
    const double log_p = p[id] - p_log_sum;
    sum += std::exp(log_p) * (log_p - (q[id] - q_log_sum));
  }
  return std::isnan(sum) ? sum : std::max(sum, 0.0);
}

LogitsComparison::LogitsComparison(std::span<const ScoreTask> tasks, std::int64_t vocabulary)
    : vocabulary_(static_cast<std::size_t>(vocabulary)) {
  std::size_t rows = 0;
  for (const ScoreTask& task : tasks) {
    first_row_.push_back(rows);
    rows += task.tokens.size() - static_cast<std::size_t>(task.first_scored);
  }
  first_row_.push_back(rows);
  logits_.resize(rows * vocabulary_);
  kl_.resize(rows);
  agrees_.resize(rows);
}

std::size_t LogitsComparison::row_index(const ScoredRow& row) const {
  const std::size_t at = first_row_[row.index] + row.score;
  TRIPHASE_CHECK(at < first_row_[row.index + 1] && row.logits.size() == vocabulary_,
                 "a row of the tasks");
  return at;
}

void LogitsComparison::keep(const ScoredRow& row) {
  std::ranges::copy(row.logits, logits_.data() + row_index(row) * vocabulary_);
}

void LogitsComparison::compare(const ScoredRow& row) {
  const std::size_t at = row_index(row);
  const std::span<const float> reference(logits_.data() + at * vocabulary_, vocabulary_);
  kl_[at] = kl_divergence(reference, row.logits);
  agrees_[at] = best(reference) == best(row.logits) ? 1 : 0;
}

Divergence LogitsComparison::divergence() const {
  Divergence total;
  std::vector<double> kl_of_task;
  std::vector<double> agreement_of_task;
  double kl = 0.0;
  double agreement = 0.0;
  for (std::size_t task = 0; task + 1 < first_row_.size(); ++task) {
    double task_kl = 0.0;
    double task_agreement = 0.0;
    for (std::size_t row = first_row_[task]; row < first_row_[task + 1]; ++row) {
      task_kl += kl_[row];
      task_agreement += agrees_[row];
    }
    const auto rows = static_cast<double>(first_row_[task + 1] - first_row_[task]);
    kl += task_kl;
    agreement += task_agreement;
    kl_of_task.push_back(task_kl / rows);
    agreement_of_task.push_back(task_agreement / rows);
  }
  total.tokens = static_cast<std::int64_t>(first_row_.back());
  if (total.tokens == 0) return total;
  total.kl = kl / static_cast<double>(total.tokens);
  total.agreement = agreement / static_cast<double>(total.tokens);
  total.kl_stderr = mean_of(kl_of_task).standard_error;
  total.agreement_stderr = mean_of(agreement_of_task).standard_error;
  return total;
}

}  // namespace triphase
