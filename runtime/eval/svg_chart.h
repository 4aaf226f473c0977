#pragma once

// A line chart as one self-contained SVG: light and dark by the viewer's preference, no script,
// every string escaped. For any table of (x, y, series). Pure.

#include <string>
#include <vector>

namespace triphase::eval {

struct ChartPoint {
  double x = 0.0;
  double y = 0.0;
  double error = 0.0;  // half the length of the error bar; 0: none
  std::string series;
};

struct Chart {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<ChartPoint> points;  // a series' points are joined in the order of x
  std::string subtitle;            // what the y axis measures; broken into lines
  // A series to compare the others with: where it is one point, a dashed line marks its level.
  std::string reference;
};

// Points that are not finite are left out. Where no y is below 0, neither is the axis; error bars
// end at the plot's edge.
[[nodiscard]] std::string svg_chart(const Chart& chart);

}  // namespace triphase::eval
