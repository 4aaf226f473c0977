#include "scheduler/cost/grid_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace triphase {
namespace {

constexpr double kLongestSeconds = 1e9;
constexpr double kLargestAmount = 1e18;

// Where a coordinate lies: the segment's first index and the position within it (outside of [0, 1]
// beyond the ends).
struct Position {
  std::size_t index = 0;
  double fraction = 0.0;
  bool outside = false;
};

Position locate(const std::vector<double>& axis, double value) {
  Position position;
  position.outside = value < axis.front() || value > axis.back();
  if (axis.size() == 1) {
    position.fraction = axis.front() > 0.0 ? value / axis.front() - 1.0 : 0.0;
    return position;
  }
  const auto above = std::ranges::upper_bound(axis, value) - axis.begin();
  position.index = static_cast<std::size_t>(
      std::clamp<std::ptrdiff_t>(above - 1, 0, static_cast<std::ptrdiff_t>(axis.size()) - 2));
  const double low = axis[position.index];
  position.fraction = (value - low) / (axis[position.index + 1] - low);
  return position;
}

// Value on a line through two samples; one sample alone is proportional to its variable.
double along(double low, double high, bool single, double fraction) {
  if (single) return low > 0.0 ? low * (1.0 + fraction) : 0.0;
  return high > low ? low + (high - low) * fraction : low;  // equal: the fraction may be infinite
}

// Values [rows][columns] that never fall along a row or a column.
void raise_to_neighbours(std::vector<double>& values, std::size_t rows, std::size_t columns) {
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < columns; ++column) {
      double& value = values[row * columns + column];
      if (row > 0) value = std::max(value, values[(row - 1) * columns + column]);
      if (column > 0) value = std::max(value, values[row * columns + column - 1]);
    }
  }
}

void transpose(std::vector<double>& values, std::size_t rows, std::size_t columns) {
  std::vector<double> turned(values.size());
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < columns; ++column) {
      turned[column * rows + row] = values[row * columns + column];
    }
  }
  values = std::move(turned);
}

// Adds samples at 0 and far beyond the last one to an axis, and to each of the `lines` of values
// along it what its own slopes give there.
void extend(std::vector<double>& axis, std::vector<double>& values, std::size_t lines) {
  constexpr double kFar = 1e6;
  const double first = axis.front();
  const double far = axis.back() > 0.0 ? axis.back() * kFar : kFar;
  const std::size_t count = axis.size();
  std::vector<double> longer;
  for (std::size_t line = 0; line < lines; ++line) {
    const double* from = values.data() + line * count;
    const auto value_at = [&](double place) {
      const Position position = locate(axis, place);
      const bool single = count == 1;
      return std::max(0.0, along(from[position.index], from[position.index + (single ? 0 : 1)],
                                 single, position.fraction));
    };
    if (first > 0.0) longer.push_back(value_at(0.0));
    longer.insert(longer.end(), from, from + count);
    longer.push_back(value_at(far));
  }
  if (first > 0.0) axis.insert(axis.begin(), 0.0);
  axis.push_back(far);
  values = std::move(longer);
}

std::string axis_problem(const char* name, const std::vector<double>& axis) {
  for (std::size_t at = 0; at < axis.size(); ++at) {
    if (!(axis[at] >= 0.0 && axis[at] <= kLargestAmount)) {
      return fmt::format("{}[{}]: {}, expected a number from 0 to {}", name, at, axis[at],
                         kLargestAmount);
    }
    if (at > 0 && axis[at] <= axis[at - 1]) {
      return fmt::format("{}[{}]: {} after {}, expected increasing values", name, at, axis[at],
                         axis[at - 1]);
    }
  }
  return {};
}

std::string values_problem(const char* name, const std::vector<double>& values) {
  for (std::size_t at = 0; at < values.size(); ++at) {
    if (!(values[at] >= 0.0 && values[at] <= kLongestSeconds)) {
      return fmt::format("{}[{}]: {}, expected a number from 0 to {}", name, at, values[at],
                         kLongestSeconds);
    }
  }
  return {};
}

}  // namespace

std::string table_problem(const GridTable& table) {
  if (table.x.empty()) return "x: empty, expected at least one sample";
  const std::size_t columns = std::max<std::size_t>(table.y.size(), 1);
  if (table.x.size() > kMaxTableCells || columns > kMaxTableCells / table.x.size()) {
    return fmt::format("x: {} by {} samples, expected at most {}", table.x.size(), columns,
                       kMaxTableCells);
  }
  const std::size_t cells = table.x.size() * columns;
  if (table.seconds.size() != cells) {
    return fmt::format("seconds: {} values, expected {}", table.seconds.size(), cells);
  }
  if (!table.spread.empty() && table.spread.size() != cells) {
    return fmt::format("spread: {} values, expected {}", table.spread.size(), cells);
  }
  for (std::string problem :
       {axis_problem("x", table.x), axis_problem("y", table.y),
        values_problem("seconds", table.seconds), values_problem("spread", table.spread)}) {
    if (!problem.empty()) return problem;
  }
  return {};
}

void make_monotone(std::vector<double>& values) {
  struct Pool {
    double mean;
    std::size_t count;
  };
  std::vector<Pool> pools;
  for (const double value : values) {
    pools.push_back({value, 1});
    while (pools.size() > 1 && pools[pools.size() - 2].mean > pools.back().mean) {
      const Pool last = pools.back();
      pools.pop_back();
      Pool& into = pools.back();
      const auto weight = static_cast<double>(into.count + last.count);
      into.mean = (into.mean * static_cast<double>(into.count) +
                   last.mean * static_cast<double>(last.count)) /
                  weight;
      into.count += last.count;
    }
  }
  std::size_t at = 0;
  for (const Pool& pool : pools) {
    for (std::size_t i = 0; i < pool.count; ++i) values[at++] = pool.mean;
  }
}

TimeCurve::TimeCurve(const GridTable& table) : x_(table.x), y_(table.y), seconds_(table.seconds) {
  if (table.empty()) return;
  TRIPHASE_CHECK(table_problem(table).empty(), table_problem(table));
  x_range_ = {x_.front(), x_.back()};
  if (y_.empty()) {
    make_monotone(seconds_);
    return;
  }
  // Along one axis, then the other: a running maximum afterwards repairs what the second pass may
  // have disturbed in the first.
  const std::size_t columns = y_.size();
  std::vector<double> line;
  for (std::size_t row = 0; row < x_.size(); ++row) {
    line.assign(seconds_.begin() + static_cast<std::ptrdiff_t>(row * columns),
                seconds_.begin() + static_cast<std::ptrdiff_t>((row + 1) * columns));
    make_monotone(line);
    std::ranges::copy(line, seconds_.begin() + static_cast<std::ptrdiff_t>(row * columns));
  }
  for (std::size_t column = 0; column < columns; ++column) {
    line.clear();
    for (std::size_t row = 0; row < x_.size(); ++row)
      line.push_back(seconds_[row * columns + column]);
    make_monotone(line);
    for (std::size_t row = 0; row < x_.size(); ++row) seconds_[row * columns + column] = line[row];
  }
  raise_to_neighbours(seconds_, x_.size(), columns);
  y_range_ = {y_.front(), y_.back()};
  // Lines go on with their own slopes, so that they might cross outside.
  extend(y_, seconds_, x_.size());
  transpose(seconds_, x_.size(), y_.size());
  extend(x_, seconds_, y_.size());
  transpose(seconds_, y_.size(), x_.size());
  raise_to_neighbours(seconds_, x_.size(), y_.size());
}

Estimate TimeCurve::at(double x) const {
  TRIPHASE_CHECK(!empty() && y_.empty(), "a table of one variable");
  if (x <= 0.0) return {};
  const Position position = locate(x_, x);
  const bool single = x_.size() == 1;
  const double seconds =
      along(seconds_[position.index], seconds_[position.index + (single ? 0 : 1)], single,
            position.fraction);
  return {std::max(seconds, 0.0), position.outside};
}

Estimate TimeCurve::at(double x, double y) const {
  TRIPHASE_CHECK(!empty() && !y_.empty(), "a table of two variables");
  if (x <= 0.0) return {};
  const Position px = locate(x_, x);
  const Position py = locate(y_, std::max(y, 0.0));
  const auto row_value = [&](std::size_t row) {
    const double* values = seconds_.data() + row * y_.size() + py.index;
    return along(values[0], values[1], /*single=*/false, py.fraction);
  };
  const double seconds =
      along(row_value(px.index), row_value(px.index + 1), /*single=*/false, px.fraction);
  const auto outside = [](const std::array<double, 2>& range, double value) {
    return value < range[0] || value > range[1];
  };
  return {std::max(seconds, 0.0), outside(x_range_, x) || outside(y_range_, y)};
}

}  // namespace triphase
