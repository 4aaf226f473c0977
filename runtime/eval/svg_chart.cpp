#include "runtime/eval/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "base/svg.h"

namespace triphase::eval {
namespace {

constexpr double kWidth = 720.0;
constexpr double kPlotHeight = 340.0;
constexpr double kLeft = 76.0;
constexpr double kRight = 170.0;  // the legend's side
constexpr double kTitle = 24.0;
constexpr double kSubtitleLine = 16.0;
constexpr std::size_t kSubtitleColumns = 100;  // characters that fit beside each other
constexpr double kBottom = 56.0;
constexpr double kCap = 4.0;  // half the width of an error bar's ends
constexpr int kTicks = 5;
// Distinguishable with every common colour vision (after Wong, 2011); brighter on a dark screen
// where they need to be.
constexpr std::array<std::string_view, 8> kColors = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                     "#e69f00", "#56b4e9", "#a0522d", "#7f7f7f"};
constexpr std::array<std::string_view, 8> kDarkColors = {
    "#3d94cc", "#e8712a", "#12b886", "#cc79a7", "#e69f00", "#7cc7f0", "#c07a50", "#a0a0a0"};
// So that series can be told apart without colour, in print.
constexpr std::array<std::string_view, 4> kDashes = {"none", "8 3", "3 3", "9 3 2 3"};

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

// Words in lines of at most `columns` characters; a longer word has a line of its own.
std::vector<std::string> wrapped(std::string_view words, std::size_t columns) {
  std::vector<std::string> lines;
  while (!words.empty()) {
    const std::size_t end = std::min(words.find(' '), words.size());
    const std::string_view word = words.substr(0, end);
    if (lines.empty() || lines.back().size() + 1 + word.size() > columns) {
      lines.emplace_back(word);
    } else {
      lines.back().append(" ").append(word);
    }
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return lines;
}

std::string color_rules(const std::array<std::string_view, 8>& colors) {
  std::string rules;
  for (std::size_t index = 0; index < colors.size(); ++index) {
    rules += fmt::format(".k{} {{ color: {}; }}\n", index, colors[index]);
  }
  return rules;
}

class Drawing {
 public:
  // `top`: of the plot, below title and subtitle.
  Drawing(const Axis& x, const Axis& y, double top) : x_axis_(x), y_axis_(y), top_(top) {}

  [[nodiscard]] double top() const { return top_; }
  [[nodiscard]] double bottom() const { return top_ + kPlotHeight; }

  [[nodiscard]] double x(double value) const {
    return kLeft + x_axis_.share(value) * (kWidth - kLeft - kRight);
  }
  [[nodiscard]] double y(double value) const {
    return bottom() - std::clamp(y_axis_.share(value), 0.0, 1.0) * kPlotHeight;
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
  double top_;
  std::string out_;
};

void draw_axes(const Chart& chart, const Axis& x, const Axis& y,
               const std::vector<std::string>& subtitle, Drawing& drawing) {
  const double bottom = drawing.bottom();
  for (double value = x.low; value < x.high + x.step / 2; value += x.step) {
    drawing.line(drawing.x(value), drawing.top(), drawing.x(value), bottom, "class=\"grid\"");
    drawing.text(drawing.x(value), bottom + 18, "middle",
                 fmt::format("{:.4g}", std::abs(value) < x.step / 1e6 ? 0.0 : value));
  }
  for (double value = y.low; value < y.high + y.step / 2; value += y.step) {
    drawing.line(kLeft, drawing.y(value), kWidth - kRight, drawing.y(value), "class=\"grid\"");
    drawing.text(kLeft - 8, drawing.y(value) + 4, "end",
                 fmt::format("{:.4g}", std::abs(value) < y.step / 1e6 ? 0.0 : value));
  }
  drawing.text(kLeft, kTitle, "start", chart.title, " font-size=\"15\" font-weight=\"600\"");
  for (std::size_t line = 0; line < subtitle.size(); ++line) {
    drawing.text(kLeft, kTitle + kSubtitleLine * static_cast<double>(line + 1) + 2, "start",
                 subtitle[line], " class=\"soft\"");
  }
  drawing.text((kLeft + kWidth - kRight) / 2, bottom + 42, "middle", chart.x_label);
  const double middle = (drawing.top() + bottom) / 2;
  drawing.text(18, middle, "middle", chart.y_label,
               fmt::format(" transform=\"rotate(-90 18 {:.1f})\"", middle));
}

void draw_error(const ChartPoint& point, std::string_view color, Drawing& drawing) {
  const double x = drawing.x(point.x);
  const double low = drawing.y(point.y - point.error);
  const double high = drawing.y(point.y + point.error);
  drawing.raw(fmt::format(
      "<path d=\"M{0:.1f} {1:.1f}V{2:.1f}M{3:.1f} {1:.1f}h{4:.1f}M{3:.1f} {2:.1f}h{4:.1f}\" "
      "stroke=\"{5}\" stroke-width=\"1\" fill=\"none\"/>\n",
      x, low, high, x - kCap, 2 * kCap, color));
}

void draw_series(const std::vector<ChartPoint>& points, std::size_t index, bool level,
                 Drawing& drawing) {
  constexpr std::string_view color = "currentColor";  // of the group
  drawing.raw(fmt::format("<g class=\"k{}\">\n", index % kColors.size()));
  const double legend_y = drawing.top() + 12 + 20 * static_cast<double>(index);
  // Colours come round again with other dashes.
  const std::string_view dashes = kDashes[(index + index / kColors.size()) % kDashes.size()];
  const std::string look =
      fmt::format("stroke=\"{}\" stroke-width=\"2\" stroke-dasharray=\"{}\"", color, dashes);
  if (level) {
    const double y = drawing.y(points.front().y);
    drawing.line(kLeft, y, kWidth - kRight, y,
                 fmt::format("stroke=\"{}\" stroke-dasharray=\"2 4\"", color));
  }
  std::string path;
  for (const ChartPoint& point : points) {
    path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "" : " ", drawing.x(point.x),
                        drawing.y(point.y));
  }
  drawing.raw(fmt::format("<polyline points=\"{}\" fill=\"none\" {}/>\n", path, look));
  for (const ChartPoint& point : points) {
    if (point.error > 0.0) draw_error(point, color, drawing);
    drawing.raw(
        fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"><title>{}: {:.6g}, "
                    "{:.6g}</title></circle>\n",
                    drawing.x(point.x), drawing.y(point.y), color, svg::escaped(point.series),
                    point.x, point.y));
  }
  drawing.line(kWidth - kRight + 14, legend_y - 4, kWidth - kRight + 42, legend_y - 4, look);
  drawing.text(kWidth - kRight + 48, legend_y, "start", points.front().series);
  drawing.raw("</g>\n");
}

// Below the series' names.
void explain_errors(std::size_t series, Drawing& drawing) {
  const double y = drawing.top() + 20 + 20 * static_cast<double>(series);
  const double x = kWidth - kRight + 28;
  drawing.raw(
      fmt::format("<path class=\"bar\" d=\"M{0:.1f} {1:.1f}v14m-4 0h8m-8 -14h8\"/>\n", x, y - 11));
  drawing.text(kWidth - kRight + 48, y, "start", "± standard error", " class=\"soft\"");
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
    const bool negative =
        std::ranges::any_of(points, [](const ChartPoint& point) { return point.y < 0.0; });
    x = axis_over(left.x, right.x);
    y = axis_over(negative ? low : std::max(low, 0.0), high);
  }
  const std::vector<std::string> subtitle = wrapped(chart.subtitle, kSubtitleColumns);
  Drawing drawing(x, y, kTitle + kSubtitleLine * static_cast<double>(subtitle.size()) + 20);
  drawing.raw(svg::opening(kWidth, drawing.bottom() + kBottom, chart.title,
                           ".grid { stroke: #d9d9d9; stroke-width: 1; }\n"
                           ".soft { fill: #5a5f66; }\n.bar { stroke: #5a5f66; fill: none; }\n" +
                               color_rules(kColors),
                           ".grid { stroke: #3a3d42; }\n.soft { fill: #a0a6ad; }\n"
                           ".bar { stroke: #a0a6ad; }\n" +
                               color_rules(kDarkColors)));
  draw_axes(chart, x, y, subtitle, drawing);
  std::vector<std::string> drawn;  // series in the order they first appear
  for (const ChartPoint& first : points) {
    if (std::ranges::find(drawn, first.series) != drawn.end()) continue;
    std::vector<ChartPoint> series;
    std::ranges::copy_if(points, std::back_inserter(series),
                         [&](const ChartPoint& point) { return point.series == first.series; });
    std::ranges::stable_sort(series, {}, &ChartPoint::x);
    draw_series(series, drawn.size(), series.size() == 1 && first.series == chart.reference,
                drawing);
    drawn.push_back(first.series);
  }
  if (std::ranges::any_of(points, [](const ChartPoint& point) { return point.error > 0.0; })) {
    explain_errors(drawn.size(), drawing);
  }
  drawing.raw("</svg>\n");
  return drawing.take();
}

}  // namespace triphase::eval
