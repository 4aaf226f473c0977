#pragma once

// Seconds measured (or derived) on a grid of one or two variables, with monotone interpolation in
// between and flagged extrapolation outside. PURE.
//
// Times never fall when there is more to do: samples are first made monotone along every axis (the
// nearest in least squares along one axis at a time), then joined linearly, so that noise of a
// measurement cannot make a planner believe that more work is faster.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace triphase {

// A time that was looked up; `extrapolated` when any coordinate lay outside of the samples.
struct Estimate {
  double seconds = 0.0;
  bool extrapolated = false;
};

struct GridTable {
  std::vector<double> x;        // strictly increasing
  std::vector<double> y;        // strictly increasing; empty: a table of one variable
  std::vector<double> seconds;  // medians; [x][y], row by row
  std::vector<double> spread;   // same shape: half the interquartile range; empty: not measured

  [[nodiscard]] bool empty() const { return seconds.empty(); }
  friend bool operator==(const GridTable&, const GridTable&) = default;
};

// What is wrong with a table ("x[3]: 4 after 8, expected increasing values"), or nothing. At most
// kMaxTableCells samples, every value finite and not negative.
inline constexpr std::size_t kMaxTableCells = 1 << 20;
[[nodiscard]] std::string table_problem(const GridTable& table);

// A table prepared for looking up. Outside of the samples it goes on with the slope of the nearest
// segment, never below zero; a table of one sample is proportional to its variable. A table of two
// variables is made monotone outside of its samples too, where slopes of its rows may differ.
class TimeCurve {
 public:
  TimeCurve() = default;
  explicit TimeCurve(const GridTable& table);

  [[nodiscard]] bool empty() const { return seconds_.empty(); }
  [[nodiscard]] Estimate at(double x) const;
  [[nodiscard]] Estimate at(double x, double y) const;

 private:
  // Tables of two variables get a sample at 0 and one far outside on both axes.
  std::vector<double> x_;
  std::vector<double> y_;
  std::vector<double> seconds_;
  // What was measured.
  std::array<double, 2> x_range_{};
  std::array<double, 2> y_range_{};
};

// Nearest non-decreasing sequence in least squares (pool adjacent violators).
void make_monotone(std::vector<double>& values);

}  // namespace triphase
