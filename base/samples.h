#pragma once

// What repeated measurements of one thing say: medians that a few disturbed samples cannot move.
// PURE.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace triphase {

struct SampleSummary {
  double median = 0.0;  // seconds, of the samples that were kept
  double spread = 0.0;  // half their interquartile range
  std::size_t kept = 0;
  // Outliers: beyond the quartiles by more than three times their distance.
  std::size_t dropped = 0;
};

// At least one sample. Fewer than four are all kept: quartiles of so few say nothing.
[[nodiscard]] SampleSummary summarize_samples(std::vector<double> seconds);

// The q-quantile (0..1) of sorted values, joined linearly between them; at least one value.
[[nodiscard]] double quantile(const std::vector<double>& sorted, double q);

// Of values in any order, at least one.
[[nodiscard]] double median(std::vector<double> values);

// A mean and its standard error (sample standard deviation / sqrt(n); 0 for a single sample).
struct Mean {
  double mean = 0.0;
  double standard_error = 0.0;
  std::int64_t count = 0;
};
[[nodiscard]] Mean mean_of(const std::vector<double>& samples);

}  // namespace triphase
