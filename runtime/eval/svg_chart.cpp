#include "runtime/eval/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "runtime/base/svg.h"

namespace triphase::eval {
namespace {

constexpr double kWidth = 720.0;
constexpr double kHeight = 440.0;
constexpr double kLeft = 76.0;
constexpr double kRight = 170.0;  // the legend's side
constexpr double kTop = 44.0;
constexpr double kBottom = 56.0;
constexpr int kTicks = 5;
// Distinguishable with every common colour vision, on white and on black (after Wong, 2011).
constexpr std::array<std::string_view, 8> kColors = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                     "#e69f00", "#56b4e9", "#a0522d", "#7f7f7f"};

struct Axis {
  double low = 0.0;
  double high = 1.0;
  double step = 0.2;

  [[nodiscard]] double share(double value) const { return (value - low) / (high - low); }
};

// Round bounds and steps.
Axis axis_over(double low, double high) {
  if (high <= low) {
    const double margin = low == 0.0 ? 1.0 : std::abs(low) * 0.1;
    low -= margin;
    high += margin;
  }
  Axis axis;
  axis.step = svg::round_step((high - low) / kTicks);
  axis.low = std::floor(low / axis.step) * axis.step;
  axis.high = std::ceil(high / axis.step) * axis.step;
  return axis;
}

class Drawing {
 public:
  Drawing(const Axis& x, const Axis& y) : x_axis_(x), y_axis_(y) {}

  [[nodiscard]] double x(double value) const {
    return kLeft + x_axis_.share(value) * (kWidth - kLeft - kRight);
  }
  [[nodiscard]] double y(double value) const {
    return kHeight - kBottom - y_axis_.share(value) * (kHeight - kTop - kBottom);
  }

  void text(double at_x, double at_y, std::string_view anchor, std::string_view words,
            std::string_view more = "") {
    out_ += svg::text(at_x, at_y, anchor, words, more);
  }
  void line(double x1, double y1, double x2, double y2, std::string_view look) {
    out_ += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1,
                        y1, x2, y2, look);
  }
  void raw(std::string_view svg) { out_ += svg; }
  [[nodiscard]] std::string take() { return std::move(out_); }

 private:
  Axis x_axis_;
  Axis y_axis_;
  std::string out_;
};

void draw_axes(const Chart& chart, const Axis& x, const Axis& y, Drawing& drawing) {
  for (double value = x.low; value < x.high + x.step / 2; value += x.step) {
    drawing.line(drawing.x(value), kTop, drawing.x(value), kHeight - kBottom, "class=\"grid\"");
    drawing.text(drawing.x(value), kHeight - kBottom + 18, "middle",
                 fmt::format("{:.4g}", std::abs(value) < x.step / 1e6 ? 0.0 : value));
  }
  for (double value = y.low; value < y.high + y.step / 2; value += y.step) {
    drawing.line(kLeft, drawing.y(value), kWidth - kRight, drawing.y(value), "class=\"grid\"");
    drawing.text(kLeft - 8, drawing.y(value) + 4, "end",
                 fmt::format("{:.4g}", std::abs(value) < y.step / 1e6 ? 0.0 : value));
  }
  drawing.text(kLeft, 24, "start", chart.title, " font-size=\"15\" font-weight=\"600\"");
  drawing.text((kLeft + kWidth - kRight) / 2, kHeight - 14, "middle", chart.x_label);
  const double middle = (kTop + kHeight - kBottom) / 2;
  drawing.text(18, middle, "middle", chart.y_label,
               fmt::format(" transform=\"rotate(-90 18 {:.1f})\"", middle));
}

void draw_series(const std::vector<ChartPoint>& points, std::size_t index, Drawing& drawing) {
  const std::string_view color = kColors[index % kColors.size()];
  const double legend_y = kTop + 12 + 20 * static_cast<double>(index);
  // Colours come round again dashed.
  const std::string_view dashes = index < kColors.size() ? "" : " stroke-dasharray=\"6 4\"";
  std::string path;
  for (const ChartPoint& point : points) {
    path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "" : " ", drawing.x(point.x),
                        drawing.y(point.y));
  }
  drawing.raw(
      fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{}/>\n",
                  path, color, dashes));
  for (const ChartPoint& point : points) {
    if (point.error > 0.0) {
      drawing.line(drawing.x(point.x), drawing.y(point.y - point.error), drawing.x(point.x),
                   drawing.y(point.y + point.error),
                   fmt::format("stroke=\"{}\" stroke-width=\"1\"", color));
    }
    drawing.raw(
        fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"><title>{}: {:.6g}, "
                    "{:.6g}</title></circle>\n",
                    drawing.x(point.x), drawing.y(point.y), color, svg::escaped(point.series),
                    point.x, point.y));
  }
  drawing.line(kWidth - kRight + 14, legend_y - 4, kWidth - kRight + 30, legend_y - 4,
               fmt::format("stroke=\"{}\" stroke-width=\"4\"{}", color, dashes));
  drawing.text(kWidth - kRight + 34, legend_y, "start", points.front().series);
}

}  // namespace

std::string svg_chart(const Chart& chart) {
  std::vector<ChartPoint> points;
  for (const ChartPoint& point : chart.points) {
    if (std::isfinite(point.x) && std::isfinite(point.y) && std::isfinite(point.error)) {
      points.push_back(point);
    }
  }
  Axis x;
  Axis y;
  if (!points.empty()) {
    const auto [left, right] = std::ranges::minmax(points, {}, &ChartPoint::x);
    double low = points.front().y;
    double high = low;
    for (const ChartPoint& point : points) {
      low = std::min(low, point.y - point.error);
      high = std::max(high, point.y + point.error);
    }
    x = axis_over(left.x, right.x);
    y = axis_over(low, high);
  }
  Drawing drawing(x, y);
  drawing.raw(svg::opening(kWidth, kHeight, chart.title,
                           ".grid { stroke: #d9d9d9; stroke-width: 1; }\n",
                           ".grid { stroke: #3a3d42; }\n"));
  draw_axes(chart, x, y, drawing);
  std::vector<std::string> drawn;  // series in the order they first appear
  for (const ChartPoint& first : points) {
    if (std::ranges::find(drawn, first.series) != drawn.end()) continue;
    std::vector<ChartPoint> series;
    std::ranges::copy_if(points, std::back_inserter(series),
                         [&](const ChartPoint& point) { return point.series == first.series; });
    std::ranges::stable_sort(series, {}, &ChartPoint::x);
    draw_series(series, drawn.size(), drawing);
    drawn.push_back(first.series);
  }
  drawing.raw("</svg>\n");
  return drawing.take();
}

}  // namespace triphase::eval
