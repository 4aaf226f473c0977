#include "base/samples.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace triphase {
namespace {

constexpr double kFence = 3.0;
constexpr std::size_t kFewestForQuartiles = 4;

}  // namespace

double quantile(const std::vector<double>& sorted, double q) {
  TRIPHASE_CHECK(!sorted.empty(), "a quantile of something");
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], place - static_cast<double>(below));
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return quantile(values, 0.5);
}

SampleSummary summarize_samples(std::vector<double> seconds) {
  TRIPHASE_CHECK(!seconds.empty(), "a summary of at least one sample");
  std::ranges::sort(seconds);
  SampleSummary summary;
  if (seconds.size() >= kFewestForQuartiles) {
    const double low = quantile(seconds, 0.25);
    const double high = quantile(seconds, 0.75);
    const double reach = kFence * (high - low);
    summary.dropped = std::erase_if(
        seconds, [&](double value) { return value < low - reach || value > high + reach; });
  }
  summary.kept = seconds.size();
  summary.median = quantile(seconds, 0.5);
  summary.spread = (quantile(seconds, 0.75) - quantile(seconds, 0.25)) / 2.0;
  return summary;
}

Mean mean_of(const std::vector<double>& samples) {
  Mean result;
  result.count = std::ssize(samples);
  if (samples.empty()) return result;
  const auto count = static_cast<double>(samples.size());
  for (const double sample : samples) result.mean += sample;
  result.mean /= count;
  if (samples.size() < 2) return result;
  double squares = 0.0;
  for (const double sample : samples) squares += (sample - result.mean) * (sample - result.mean);
  result.standard_error = std::sqrt(squares / (count - 1.0) / count);
  return result;
}

}  // namespace triphase
