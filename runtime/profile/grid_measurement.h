#pragma once

// Fills a table of a hardware profile by timing work on a grid. Every cell is measured in three
// rounds that lie apart in time. The middle of their medians counts, so a machine that was busy for
// a while does not matter. The table also says how repeatable it is. Axes end early where the time
// for the table does not allow larger values; at least two values of each are measured.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/steady_seconds.h"
#include "scheduler/cost/grid_table.h"

namespace triphase {

// The work of a table. Calls come as begin, before_run and run (any number of times), end.
class GridWork {
 public:
  GridWork() = default;
  GridWork(const GridWork&) = delete;
  GridWork& operator=(const GridWork&) = delete;
  virtual ~GridWork() = default;

  // Whether this cell can be measured at all. Where it cannot, neither can larger y at the same or
  // smaller x.
  [[nodiscard]] virtual bool possible(double /*x*/, double /*y*/) const { return true; }
  virtual void begin(double x, double y) = 0;  // prepares; not timed
  virtual void before_run() {}                 // before each run; not timed
  virtual void run() = 0;                      // once; done when it returns
  virtual void end() {}
};

// How well the measurements of a table's cells repeat, over all cells.
struct Repeatability {
  std::int64_t cells = 0;    // measured
  std::int64_t filled = 0;   // not possible for this model, continued from their neighbours
  std::int64_t samples = 0;  // that count
  std::int64_t dropped = 0;  // outliers
  double spread = 0.0;       // median over the cells: half the interquartile range / median
  double rounds = 0.0;       // median over the cells: slowest minus fastest round's median / median
  double rounds_worst = 0.0;  // the largest such difference of any cell
  double seconds = 0.0;       // time spent, warm-up included
};

struct GridMeasurement {
  GridTable table;
  Repeatability repeatability;
};

// `x` and `y` ascending; y empty: a table of one variable. `seconds`: time to spend, warm-up
// included; the fewest samples that mean anything are taken even where it does not suffice.
// `on_progress` gets the share of `seconds` that is spent, after every cell. `now`: a clock's
// seconds, which never fall.
[[nodiscard]] GridMeasurement measure_grid(GridWork& work, const std::vector<double>& x,
                                           const std::vector<double>& y, double seconds,
                                           std::function<void(double share)> on_progress = {},
                                           std::function<double()> now = steady_seconds);

// "24 cells, 410 samples, 3 outliers dropped; spread 1.2 %, rounds 0.8 % apart (worst 4.1 %)".
[[nodiscard]] std::string to_text(const Repeatability& repeatability);

}  // namespace triphase
