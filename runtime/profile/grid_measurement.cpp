#include "runtime/profile/grid_measurement.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/samples.h"

namespace triphase {
namespace {

constexpr int kRounds = 3;
constexpr double kShortest = 1e-12;  // seconds; no clock shows less
constexpr std::size_t kFewestSamples = 2;
// Of cells where one call takes more than this share of the table's time a round takes one sample,
// without a call before it: what a first call pays extra is little beside it, and such a cell is
// the largest work there is, which no line through smaller ones replaces.
constexpr double kDearShare = 0.02;
constexpr std::size_t kMostSamples = 200;
// One call of every cell may take this share of the table's time before the axes are cut.
constexpr double kWarmUpShare = 0.2;
constexpr double kPatience = 3.0;  // times the table's time that warming up may really last
// Calls shorter than this share of the table's time are warmed up a few times more.
constexpr double kCheapShare = 0.005;
constexpr int kCheapCalls = 3;
constexpr std::size_t kFewestValues = 2;
constexpr std::size_t kCoarseValues = 4;  // axes longer than this are thinned before they are cut

struct Cell {
  bool measured = false;
  double setup = 0.0;  // seconds of begin()
  double once = 0.0;   // seconds of the warm-up call
  std::vector<double> rounds[kRounds];
};

using Axis = std::vector<double>;

// Every second value between the ends goes; the largest of those that go is next to the last.
void thin(Axis& axis) {
  Axis kept;
  for (std::size_t at = 0; at < axis.size(); ++at) {
    const bool end = at == 0 || at + 1 == axis.size();
    if (end || (axis.size() - 1 - at) % 2 == 0) kept.push_back(axis[at]);
  }
  axis = std::move(kept);
}

class Grid {
 public:
  Grid(GridWork& work, const std::vector<double>& x, const std::vector<double>& y, double seconds,
       std::function<void(double)> on_progress, std::function<double()> now)
      : now_(std::move(now)),
        on_progress_(std::move(on_progress)),
        work_(work),
        x_(x),
        y_(y.empty() ? Axis{0.0} : y),
        seconds_(seconds),
        start_(now_()),
        one_variable_(y.empty()) {
    TRIPHASE_CHECK(!x_.empty() && seconds > 0.0, "a grid to measure and time for it");
  }

  GridMeasurement measure() {
    warm_up();
    cut_to_time();
    for (int round = 0; round < kRounds; ++round) sample_round(round);
    return result();
  }

 private:
  [[nodiscard]] Cell& at(double x, double y) { return cells_[{x, y}]; }

  double timed_run() {
    work_.before_run();
    const double before = now_();
    work_.run();
    return now_() - before;
  }

  void warm_up_cell(double x, double y) {
    Cell& cell = at(x, y);
    const double before = now_();
    work_.begin(x, y);
    cell.setup = now_() - before;
    cell.once = timed_run();
    // A first call pays for pages and threads that later ones find ready, and on a busy machine one
    // call tells little: the shortest of a few decides what is affordable.
    for (int again = 0; again < kCheapCalls && cell.once < seconds_ * kCheapShare; ++again) {
      cell.once = std::min(cell.once, timed_run());
    }
    work_.end();
    cell.measured = true;
    warmed_ += cell.once;
    report();
  }

  // What a value of an axis will take, from the two before it: their trend, at most in proportion.
  static double expected(double before_last, double last, double growth) {
    const double trend = before_last > 0.0 ? 1.5 * last / before_last : growth;
    return last * std::clamp(trend, 1.0, std::max(growth, 1.0));
  }
  static double growth(const Axis& axis, std::size_t at) {
    return axis[at - 1] > 0.0 ? axis[at] / axis[at - 1] : 1.0;
  }

  // Every cell, smallest first; stops growing where the next value would take too long. Counts what
  // calls take at their best: time that other programs took must not decide what is measured, up to
  // a point.
  void warm_up() {
    const auto too_long = [&](double next) {
      return warmed_ + next > seconds_ * kWarmUpShare || now_() - start_ > seconds_ * kPatience;
    };
    std::vector<double> rows;
    for (std::size_t i = 0; i < x_.size(); ++i) {
      if (i >= kFewestValues && too_long(expected(rows[i - 2], rows[i - 1], growth(x_, i)))) {
        x_.resize(i);
        break;
      }
      if (work_.possible(x_[i], y_[0])) warm_up_cell(x_[i], y_[0]);
      rows.push_back(at(x_[i], y_[0]).once);
    }
    std::vector<double> columns = {warmed_};
    for (std::size_t j = 1; j < y_.size(); ++j) {
      if (j >= kFewestValues && too_long(expected(columns[j - 2], columns[j - 1], growth(y_, j)))) {
        y_.resize(j);
        break;
      }
      const double before = warmed_;
      for (const double x : x_) {
        if (work_.possible(x, y_[j])) warm_up_cell(x, y_[j]);
      }
      columns.push_back(warmed_ - before);
    }
    drop_unreached_columns();
  }

  // Columns that no row reaches hold nothing.
  void drop_unreached_columns() {
    while (y_.size() > 1 && !at(x_.back(), y_.back()).measured) y_.pop_back();
  }

  [[nodiscard]] bool is_dear(const Cell& cell) const { return cell.once > seconds_ * kDearShare; }

  // What the fewest samples of every cell take, with what comes before them.
  [[nodiscard]] double fewest_samples() {
    double sum = 0.0;
    for (const double x : x_) {
      for (const double y : y_) {
        const Cell& cell = at(x, y);
        const std::size_t calls = is_dear(cell) ? 1 : kFewestSamples + 1;
        sum += kRounds * (cell.setup + cell.once * static_cast<double>(calls));
      }
    }
    return sum;
  }

  // Until the fewest samples of every cell fit the time left: long axes become coarser, short ones
  // lose the largest value that saves most.
  void cut_to_time() {
    while (fewest_samples() > seconds_ * (1.0 - kWarmUpShare)) {
      Axis& longer = x_.size() >= y_.size() ? x_ : y_;
      if (longer.size() > kCoarseValues) {
        thin(longer);
        continue;
      }
      const bool can_x = x_.size() > kFewestValues;
      const bool can_y = y_.size() > kFewestValues;
      if (!can_x && !can_y) return;
      double of_x = 0.0;
      double of_y = 0.0;
      for (const double y : y_) of_x += at(x_.back(), y).once;
      for (const double x : x_) of_y += at(x, y_.back()).once;
      (can_x && (!can_y || of_x >= of_y) ? x_ : y_).pop_back();
      drop_unreached_columns();
    }
  }

  [[nodiscard]] std::int64_t measured_cells() {
    std::int64_t count = 0;
    for (const double x : x_) {
      for (const double y : y_) count += at(x, y).measured ? 1 : 0;
    }
    return count;
  }

  void sample_round(int round) {
    std::int64_t cells_left = measured_cells();
    for (const double x : x_) {
      for (const double y : y_) {
        Cell& cell = at(x, y);
        if (!cell.measured) continue;
        const double spent = now_() - start_;
        const double left = (seconds_ - spent) / static_cast<double>(kRounds - round);
        const double slice = left / static_cast<double>(cells_left--);
        const double begin = now_();
        work_.begin(x, y);
        if (!is_dear(cell)) static_cast<void>(timed_run());
        const std::size_t fewest = is_dear(cell) ? 1 : kFewestSamples;
        std::vector<double>& samples = cell.rounds[round];
        while (samples.size() < fewest ||
               (samples.size() < kMostSamples && now_() - begin < slice)) {
          samples.push_back(timed_run());
        }
        work_.end();
        report();
      }
    }
  }

  void report() const {
    if (on_progress_) on_progress_(std::min((now_() - start_) / seconds_, 1.0));
  }

  GridMeasurement result() {
    GridMeasurement out;
    GridTable& table = out.table;
    Repeatability& quality = out.repeatability;
    table.x = x_;
    if (!one_variable_) table.y = y_;
    table.seconds.resize(x_.size() * y_.size());
    table.spread.resize(table.seconds.size());
    std::vector<double> spreads;
    std::vector<double> differences;
    for (std::size_t i = 0; i < x_.size(); ++i) {
      for (std::size_t j = 0; j < y_.size(); ++j) {
        const Cell& cell = at(x_[i], y_[j]);
        if (!cell.measured) continue;
        std::vector<double> all;
        std::vector<double> medians;
        for (const std::vector<double>& round : cell.rounds) {
          all.insert(all.end(), round.begin(), round.end());
          medians.push_back(summarize_samples(round).median);
        }
        const SampleSummary summary = summarize_samples(all);
        const auto [least, most] = std::ranges::minmax(medians);
        // Of the rounds, not of all samples: where others slowed the machine for a whole round,
        // that round is outvoted whatever it took.
        const double middle = median(medians);
        table.seconds[i * y_.size() + j] = middle;
        table.spread[i * y_.size() + j] = summary.spread;
        const double divisor = std::max(middle, kShortest);
        spreads.push_back(summary.spread / divisor);
        differences.push_back((most - least) / divisor);
        quality.samples += static_cast<std::int64_t>(summary.kept);
        quality.dropped += static_cast<std::int64_t>(summary.dropped);
      }
    }
    std::ranges::sort(spreads);
    std::ranges::sort(differences);
    quality.cells = std::ssize(spreads);
    quality.spread = quantile(spreads, 0.5);
    quality.rounds = quantile(differences, 0.5);
    quality.rounds_worst = differences.back();
    fill_impossible(table, quality);
    quality.seconds = now_() - start_;
    return out;
  }

  // A cell that the model cannot reach (more tokens than its context allows) goes on with the slope
  // of the next row that can: no step of this model asks for it, but the table is a rectangle.
  void fill_impossible(GridTable& table, Repeatability& quality) {
    const std::size_t columns = y_.size();
    for (std::size_t i = x_.size(); i-- > 0;) {
      for (std::size_t j = 1; j < columns; ++j) {
        if (at(x_[i], y_[j]).measured) continue;
        TRIPHASE_CHECK(i + 1 < x_.size(), "the last row reaches every column that is kept");
        const double* row = table.seconds.data() + i * columns;
        const double* next = row + columns;
        table.seconds[i * columns + j] = row[j - 1] + std::max(next[j] - next[j - 1], 0.0);
        table.spread[i * columns + j] = table.spread[i * columns + j - 1];
        ++quality.filled;
      }
    }
  }

  std::function<double()> now_;
  std::function<void(double)> on_progress_;
  GridWork& work_;
  Axis x_;
  Axis y_;
  double seconds_;
  double start_;
  double warmed_ = 0.0;  // seconds of warm-up calls at their best
  bool one_variable_;
  std::map<std::pair<double, double>, Cell> cells_;  // by x and y
};

}  // namespace

GridMeasurement measure_grid(GridWork& work, const std::vector<double>& x,
                             const std::vector<double>& y, double seconds,
                             std::function<void(double)> on_progress, std::function<double()> now) {
  return Grid(work, x, y, seconds, std::move(on_progress), std::move(now)).measure();
}

std::string to_text(const Repeatability& r) {
  return fmt::format(
      "{} cells, {} samples, {} outliers dropped; spread {:.1f} %, rounds {:.1f} % apart (worst "
      "{:.1f} %){}",
      r.cells, r.samples, r.dropped, 100.0 * r.spread, 100.0 * r.rounds, 100.0 * r.rounds_worst,
      r.filled > 0 ? fmt::format("; {} cells beyond the model's context continued", r.filled) : "");
}

}  // namespace triphase
